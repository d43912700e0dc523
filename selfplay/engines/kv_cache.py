"""A key-value cache in which every row has its own length.

Rows are slots of one preallocated buffer, so that a decoding step writes one column per row in
place (where growing by concatenation would copy the whole cache for every token), and so that
requests of any length can join and leave between steps.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values: two buffers [slots, heads, columns, head size]."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, cursor: "SlotCache") -> None:
        super().__init__()
        self.cursor = cursor

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate for the current number of slots and columns."""
        self.keys = self._buffer(key_states)
        self.values = self._buffer(value_states)
        self.is_initialized = True

    def _buffer(self, like: torch.Tensor) -> torch.Tensor:
        cursor = self.cursor
        # Zeros, not empty memory: a masked column still meets the softmax's weight 0 x its value.
        return like.new_zeros(cursor.slots, like.shape[1], cursor.columns, like.shape[3])

    def resize(self) -> None:
        """Grow the buffers to the cursor's numbers of slots and columns, keeping what is there."""
        if not self.is_initialized:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = self._buffer(old)
            new[: old.shape[0], :, : old.shape[2]] = old
            setattr(self, name, new)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one column per row at the row's own length; return the live part of the buffers."""
        rows, columns = self.cursor.live_rows, self.cursor.live_columns
        self.keys[rows, :, columns] = key_states[:, :, 0]
        self.values[rows, :, columns] = value_states[:, :, 0]
        count, width = self.cursor.rows, self.cursor.width
        return self.keys[:count, :, :width], self.values[:count, :, :width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(columns, offset)."""
        return self.cursor.width, 0

    def get_seq_length(self) -> int:
        """Columns in use, the one being written left out."""
        return self.cursor.width - 1

    def get_max_length(self) -> int:
        """No fixed limit."""
        return -1


class SlotCache(Cache):
    """The layers of all rows in flight. Rows 0 .. rows-1 are live and always dense."""

    layers: list[SlotLayer]  # type: ignore[assignment]

    def __init__(self, layers: int, device: torch.device) -> None:
        self.slots, self.columns, self.rows, self.width = 0, 0, 0, 0
        self.lengths = torch.zeros(0, dtype=torch.long, device=device)
        self.live_rows = self.live_columns = self.lengths
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    def admit(self, prefilled: DynamicCache, sources: list[int], lengths: list[int]) -> None:
        """Append rows: row i continues row `sources[i]` of a left-padded prefill.

        Args:
            prefilled: Cache of the distinct prompts, padded on the left.
            sources: For every new row, its row in `prefilled`.
            lengths: For every new row, its prompt's tokens.
        """
        first, count = self.rows, len(sources)
        self.reserve(first + count, max(lengths))
        by_source: dict[int, list[int]] = {}
        for offset, source in enumerate(sources):
            by_source.setdefault(source, []).append(first + offset)
        for mine, theirs in zip(self.layers, prefilled.layers, strict=True):
            assert isinstance(theirs, DynamicLayer)
            assert theirs.keys is not None and theirs.values is not None
            if not mine.is_initialized:
                mine.lazy_initialization(theirs.keys, theirs.values)
            for source, rows in by_source.items():
                length = lengths[rows[0] - first]
                for own, other in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
                    own[rows[0] : rows[-1] + 1, :, :length] = other[source, :, -length:]
        self.rows = first + count
        self.lengths[first : self.rows] = torch.tensor(lengths, device=self.lengths.device)

    def start_step(self) -> torch.Tensor:
        """Prepare one decoding step; returns the mask [rows, 1, 1, width] of what each row sees."""
        lengths = self.lengths[: self.rows]
        self.width = int(lengths.max()) + 1
        self.live_rows = torch.arange(self.rows, device=lengths.device)
        self.live_columns = lengths.clone()
        columns = torch.arange(self.width, device=lengths.device)
        return (columns <= lengths[:, None])[:, None, None, :]

    def end_step(self, grows: torch.Tensor) -> None:
        """The rows where `grows` [rows] is true have grown by one; the others rewrite a column.

        A row that is done must stand still: it has reserved no column for what it says after that,
        and a model with learned positions has none either.
        """
        self.lengths[: self.rows] += grows.long()

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these live rows (ascending), moved together."""
        rows = rows.to(self.lengths.device)
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
        if len(moved):
            sources, width = rows[moved], int(self.lengths[: self.rows].max())
            for layer in self.layers:
                layer.keys[moved, :, :width] = layer.keys[sources, :, :width]
                layer.values[moved, :, :width] = layer.values[sources, :, :width]
        self.lengths[: len(rows)] = self.lengths[rows]
        self.rows = len(rows)

    def reserve(self, slots: int, columns: int) -> None:
        """Make room for so many rows of so many tokens; a buffer that must grow is copied."""
        if slots <= self.slots and columns <= self.columns:
            return
        lengths = self.lengths.new_zeros(max(slots, self.slots))
        lengths[: self.slots] = self.lengths
        self.lengths = lengths
        self.slots, self.columns = max(slots, self.slots), max(columns, self.columns)
        for layer in self.layers:
            layer.resize()
