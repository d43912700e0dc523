"""A key-value cache in which every row has its own length.

Rows are slots of one preallocated buffer. A pass therefore writes the new columns of its rows in
place, while a cache that grows by concatenation copies all of itself for every token. Rows of any
length can join and leave between passes, and a row can be copied to others that continue it.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer: two buffers [slots, heads, columns, head size]."""

    keys: Tensor
    """[slots, heads, columns, head size]; allocated in the first pass."""
    values: Tensor
    """The same for the values."""

    def __init__(self, cursor: "SlotCache") -> None:
        super().__init__()
        self.cursor = cursor

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers for the current numbers of slots and columns."""
        self.keys = self._buffer(key_states)
        self.values = self._buffer(value_states)
        self.is_initialized = True

    def _buffer(self, like: Tensor) -> Tensor:
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

    def copy(self, sources: Tensor, targets: Tensor, width: int) -> None:
        """Copy the first `width` columns of the rows `sources` to the rows `targets`."""
        if self.is_initialized:
            self.keys[targets, :, :width] = self.keys[sources, :, :width]
            self.values[targets, :, :width] = self.values[sources, :, :width]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new columns of the pass; return the columns that its rows may look at.

        Args:
            key_states: [rows of the pass, heads, N, head size].
            value_states: The same for the values.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        at = self.cursor
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            new = states.transpose(1, 2)
            buffer[at.new_rows, :, at.new_columns] = (
                new.flatten(0, 1) if at.real is None else new[at.real]
            )
        return self.keys[at.live, :, : at.width], self.values[at.live, :, : at.width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of columns of the attention mask, and their offset."""
        return self.cursor.width, 0

    def get_seq_length(self) -> int:
        """Return the number of columns in use, without those that the pass writes."""
        return self.cursor.width - self.cursor.queries

    def get_max_length(self) -> int:
        """Return -1: there is no fixed limit."""
        return -1


class SlotCache(Cache):
    """Layers of the cache of all rows; rows 0 .. rows-1 are in use, without gaps."""

    layers: list[SlotLayer]  # type: ignore[assignment]

    def __init__(self, layers: int, device: torch.device) -> None:
        self.slots, self.columns, self.rows = 0, 0, 0
        self.lengths = torch.zeros(0, dtype=torch.long, device=device)
        # Of the current pass: its rows; the number of columns that they look at; the number N of
        # queries per row; the row and the column of each new token; and [rows, N] True for new
        # tokens and False for padding (None without padding).
        self.live: Tensor | slice = slice(0)
        self.width, self.queries = 0, 0
        self.new_rows = self.new_columns = self.lengths
        self.real: Tensor | None = None
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    def reserve(self, slots: int, columns: int) -> None:
        """Make room for `slots` rows of `columns` tokens; a buffer that must grow is copied."""
        if slots <= self.slots and columns <= self.columns:
            return
        if slots > self.slots:
            slots = max(slots, self.slots + self.slots // 4)  # rows split one after another
        lengths = self.lengths.new_zeros(max(slots, self.slots))
        lengths[: self.slots] = self.lengths
        self.lengths = lengths
        self.slots, self.columns = max(slots, self.slots), max(columns, self.columns)
        for layer in self.layers:
            layer.resize()

    def extend(self, count: int, columns: int) -> Tensor:
        """Append empty rows that may grow to `columns` tokens; return their indices [count]."""
        first = self.rows
        self.reserve(first + count, columns)
        self.rows = first + count
        self.lengths[first : self.rows] = 0
        return torch.arange(first, self.rows, device=self.lengths.device)

    def copy(self, sources: Tensor, targets: Tensor, lengths: Tensor) -> None:
        """Let each row of `targets` begin with the first tokens of its row of `sources`.

        Args:
            sources: [rows] rows to copy from, as they are before the call.
            targets: [rows] distinct rows to write to.
            lengths: [rows] number of tokens to copy.
        """
        if not len(targets):
            return
        width = int(lengths.max())
        for layer in self.layers:
            layer.copy(sources, targets, width)
        self.lengths[targets] = lengths

    def regroup(self, sources: Tensor) -> None:
        """Replace all rows: new row i is the old row `sources[i]`, and costs nothing if it is i."""
        sources = sources.to(self.lengths.device)
        self.reserve(len(sources), self.columns)
        places = torch.arange(len(sources), device=sources.device)
        moved = (sources != places).nonzero()[:, 0]
        self.copy(sources[moved], moved, self.lengths[sources[moved]])
        self.rows = len(sources)

    def begin(self, rows: Tensor, new: Tensor) -> tuple[Tensor | None, Tensor]:
        """Prepare a pass that appends `new[i]` tokens to row `rows[i]`, padded on the left to N.

        Args:
            rows: [R] distinct rows.
            new: [R] numbers of tokens.

        Returns:
            The mask [R, 1, N, width] of the visible columns, None where all of them are new and a
            causal mask is right; and the positions [R, N].
        """
        total = self.lengths[rows] + new
        self.width, self.queries = int(total.max()), int(new.max())
        steps = torch.arange(self.queries, device=total.device)
        columns = total[:, None] - self.queries + steps
        real = steps >= self.queries - new[:, None]
        self.real = None if bool(real.all()) else real
        self.new_rows = rows[:, None].expand_as(columns)[real]
        self.new_columns = columns[real]
        self.lengths[rows] = total
        neighbours = bool((rows.diff() == 1).all())
        self.live = slice(int(rows[0]), int(rows[-1]) + 1) if neighbours else rows
        positions = columns.clamp(min=0)  # padding looks at the first column
        if self.real is None and self.queries == self.width:
            return None, positions
        seen = torch.arange(self.width, device=total.device) <= positions[..., None]
        return seen[:, None], positions
