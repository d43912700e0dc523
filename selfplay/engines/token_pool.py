"""Keys and values of single tokens, for prefixes that outlive their rows."""

import torch
from torch import Tensor

from selfplay.engines.kv_cache import SlotCache


class TokenPool:
    """Two buffers [tokens, heads, head size] per layer, which grow up to a maximum.

    `PrefixCache` knows the token at each place.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.size = capacity, 0
        """Maximum and present number of places."""
        self.free: list[int] = []
        """Places without a token."""
        self._layers: list[tuple[Tensor, Tensor]] = []

    def available(self) -> int:
        """Return the number of tokens for which there is room."""
        return len(self.free) + self.capacity - self.size

    def take(self, count: int) -> list[int]:
        """Return `count` free places; `count` is at most `available()`."""
        if count > len(self.free):
            size = min(self.capacity, max(2 * self.size, self.size + count - len(self.free)))
            self.free += range(self.size, size)
            self.size = size
        taken = self.free[len(self.free) - count :]
        del self.free[len(self.free) - count :]
        return taken

    def save(self, cache: SlotCache, rows: Tensor, columns: Tensor, places: Tensor) -> None:
        """Copy tokens from a cache.

        Args:
            cache: The cache of all rows.
            rows: [tokens] row of each token.
            columns: [tokens] column of each token.
            places: [tokens] distinct places.
        """
        for number, layer in enumerate(cache.layers):
            if number == len(self._layers):
                heads = layer.keys.new_empty(0, *layer.keys.shape[1::2])
                self._layers.append((heads, layer.values.new_empty(0, *layer.values.shape[1::2])))
            own = tuple(self._grown(buffer) for buffer in self._layers[number])
            self._layers[number] = (own[0], own[1])
            own[0][places] = layer.keys[rows, :, columns]
            own[1][places] = layer.values[rows, :, columns]

    def load(self, cache: SlotCache, rows: Tensor, columns: Tensor, places: Tensor) -> None:
        """Copy tokens to a cache; the arguments are those of `save`."""
        for layer, (keys, values) in zip(cache.layers, self._layers, strict=True):
            layer.keys[rows, :, columns] = keys[places]
            layer.values[rows, :, columns] = values[places]

    def _grown(self, buffer: Tensor) -> Tensor:
        if len(buffer) == self.size:
            return buffer
        return torch.cat([buffer, buffer.new_empty(self.size - len(buffer), *buffer.shape[1:])])
