"""Main memory through which whole weights reach the processes of a vLLM engine.

An engine with tensor parallelism has one process, a shard, per GPU. The weights pass piece by piece
through one buffer that this process writes and all shards read. The buffer is a file in memory
(memfd_create), which needs no room in /dev/shm and ends with the processes that hold it. Between
processes only names, places and shapes are pickled, never weights.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from selfplay.errors import RunError, one_line

PIECE = 2**30
"""Bytes of a piece, unless one tensor has more."""
ALIGNED = 64
"""Every tensor begins at a multiple of this number of bytes."""
GB = 1e9


@dataclass(frozen=True, kw_only=True)
class TensorPlace:
    """The place of one tensor in the buffer."""

    name: str
    """Name of the tensor in the Hugging Face model."""
    start: int
    """Index of its first byte."""
    dtype: torch.dtype
    """Type of its elements."""
    shape: tuple[int, ...]
    """Shape of the whole tensor, of which a shard takes its part."""

    def within(self, memory: Tensor) -> Tensor:
        """Return the tensor in the bytes of the buffer, which it shares."""
        size = torch.Size(self.shape).numel() * self.dtype.itemsize
        return memory[self.start : self.start + size].view(self.dtype).reshape(self.shape)


class WeightBuffer:
    """The buffer on the side of the process that has the weights; `load_weights` makes it.

    `ShardWeights` reads it in the shards.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """Allocate memory for pieces of weights of these sizes; raises RunError if there is too
        little. The tensors may be on the device meta."""
        sizes = [_rounded(tensor.numel() * tensor.element_size()) for tensor in weights.values()]
        self.size = max(*sizes, min(PIECE, sum(sizes)), ALIGNED)
        """Bytes of the buffer."""
        self._file = os.memfd_create("selfplay-weights")
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        """File that the shards map."""
        try:
            os.posix_fallocate(self._file, 0, self.size)
            self._memory = mapped(self.path, self.size)
        except (OSError, RuntimeError) as error:  # torch raises the latter
            self.close()
            raise RunError(
                f"engine.tensor_parallel: no {self.size / GB:.2g} GB of main memory for the "
                f"weights on their way to vLLM: {one_line(error)}"
            ) from error

    def pieces(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[list[TensorPlace]]:
        """Write these weights in one piece after another; yield the places of its tensors.

        Read a piece before you ask for the next one.
        """
        places: list[TensorPlace] = []
        end = 0
        for name, tensor in tensors:
            size = _rounded(tensor.numel() * tensor.element_size())
            if end + size > self.size:
                yield places
                places, end = [], 0
            place = TensorPlace(name=name, start=end, dtype=tensor.dtype, shape=tuple(tensor.shape))
            place.within(self._memory).copy_(tensor)
            places.append(place)
            end += size
        yield places

    def close(self) -> None:
        """Free the memory; the shards free theirs at the end of the load."""
        with suppress(AttributeError):
            del self._memory
        os.close(self._file)


def mapped(path: str, size: int) -> Tensor:
    """Return the bytes of a file as a tensor that shares them."""
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


def copies(places: Iterable[TensorPlace], memory: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a piece, each with its name.

    They are copies, because vLLM keeps a layer's tensors until the layer is complete, and then the
    buffer may hold the next piece. They stay in main memory: a shard moves only its part to a GPU.
    """
    for place in places:
        yield place.name, place.within(memory).clone()


def _rounded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
