"""A key-value cache in which every row has its own length.

Rows are slots of one preallocated buffer. A decoding step therefore writes one column per row in
place, while a cache that grows by concatenation copies all of itself for every token. Requests of
any length can join and leave between steps.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer: two buffers [slots, heads, columns, head size]."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, cursor: "SlotCache") -> None:
        super().__init__()
        self.cursor = cursor

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the buffers for the current numbers of slots and columns."""
        self.keys = self._buffer(key_states)
        self.values = self._buffer(value_states)
        self.is_initialized = True

    def _buffer(self, like: torch.Tensor) -> torch.Tensor:
        cursor = self.cursor
        # Zeros, not empty memory: the attention multiplies the value of a masked column by 0.
        return like.new_zeros(cursor.slots, like.shape[1], cursor.columns, like.shape[3])

    def resize(self) -> None:
        """Grow the buffers to the current numbers of slots and columns and keep their contents."""
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
        """Write one column per row at the row's length; return the live part of the buffers."""
        rows, columns = self.cursor.live_rows, self.cursor.live_columns
        self.keys[rows, :, columns] = key_states[:, :, 0]
        self.values[rows, :, columns] = value_states[:, :, 0]
        count, width = self.cursor.rows, self.cursor.width
        return self.keys[:count, :, :width], self.values[:count, :, :width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of columns of the attention mask, and their offset."""
        return self.cursor.width, 0

    def get_seq_length(self) -> int:
        """Return the number of columns in use, without the one that is being written."""
        return self.cursor.width - 1

    def get_max_length(self) -> int:
        """Return -1: there is no fixed limit."""
        return -1


class SlotCache(Cache):
    """Layers of the cache of all rows in flight; rows 0 .. rows-1 are live, without gaps."""

    layers: list[SlotLayer]  # type: ignore[assignment]

    def __init__(self, layers: int, device: torch.device) -> None:
        self.slots, self.columns, self.rows, self.width = 0, 0, 0, 0
        self.lengths = torch.zeros(0, dtype=torch.long, device=device)
        self.live_rows = self.live_columns = self.lengths
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    def admit(self, prefilled: DynamicCache, sources: list[int], lengths: list[int]) -> None:
        """Append rows; new row i continues row `sources[i]` of a left-padded prefill.

        Args:
            prefilled: Cache of the distinct prompts, padded on the left.
            sources: Row in `prefilled` of every new row.
            lengths: Number of prompt tokens of every new row.
        """
        first, count = self.rows, len(sources)
        self.reserve(first + count, max(lengths))
        by_source: dict[int, list[int]] = {}
        for offset, source in enumerate(sources):
            by_source.setdefault(source, []).append(first + offset)
        for layer, prompt in zip(self.layers, prefilled.layers, strict=True):
            assert isinstance(prompt, DynamicLayer)
            assert prompt.keys is not None and prompt.values is not None
            if not layer.is_initialized:
                layer.lazy_initialization(prompt.keys, prompt.values)
            for source, rows in by_source.items():
                length = lengths[rows[0] - first]
                for own, other in ((layer.keys, prompt.keys), (layer.values, prompt.values)):
                    own[rows[0] : rows[-1] + 1, :, :length] = other[source, :, -length:]
        self.rows = first + count
        self.lengths[first : self.rows] = torch.tensor(lengths, device=self.lengths.device)

    def start_step(self) -> torch.Tensor:
        """Prepare one decoding step; return the mask [rows, 1, 1, width] of the visible columns."""
        lengths = self.lengths[: self.rows]
        self.width = int(lengths.max()) + 1
        self.live_rows = torch.arange(self.rows, device=lengths.device)
        self.live_columns = lengths.clone()
        columns = torch.arange(self.width, device=lengths.device)
        return (columns <= lengths[:, None])[:, None, None, :]

    def end_step(self, grows: torch.Tensor) -> None:
        """Advance by one token the rows for which `grows` [rows] is true.

        A row that has ended must not advance: no column is reserved for its later tokens, and a
        model with learned positions may have no position for them.
        """
        self.lengths[: self.rows] += grows.long()

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these live rows, given in ascending order, and close the gaps between them."""
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
        """Make room for `slots` rows of `columns` tokens; a buffer that must grow is copied."""
        if slots <= self.slots and columns <= self.columns:
            return
        lengths = self.lengths.new_zeros(max(slots, self.slots))
        lengths[: self.slots] = self.lengths
        self.lengths = lengths
        self.slots, self.columns = max(slots, self.slots), max(columns, self.columns)
        for layer in self.layers:
            layer.resize()
