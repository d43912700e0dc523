"""Copies of a GPU's tensors in main memory, through two small buffers of pinned memory.

A GPU writes to pinned memory at the speed of its link. Where the memory is not pinned, the driver
copies through a buffer of its own, one piece after another (1.7 to 1.9 GB/s on an H100,
docs/gpu.md). Torch's own ways pin the whole result, which takes as much pinned memory as there are
weights. Here the GPU fills one buffer while this process empties the other one.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

SIZE = 2**25
"""Bytes of each of the two buffers: 32 MiB."""
STAGED = "cuda"
"""Kind of the devices whose tensors pass through the buffers."""


class Ended(Protocol):
    """The end of a copy into a buffer; `torch.cuda.Event` is one."""

    def synchronize(self) -> None:
        """Wait for the end."""
        ...


class CopyQueue(Protocol):
    """Makes buffers that a device can write to by itself, and starts copies into them."""

    def buffer(self, size: int) -> Tensor:
        """Return a new buffer of `size` bytes."""
        ...

    def start(self, source: Tensor, buffer: Tensor) -> Ended:
        """Start a copy of bytes into a buffer; return its end."""
        ...


class CudaQueue:
    """Copies in the current stream of the tensor's GPU, after what was computed there."""

    def buffer(self, size: int) -> Tensor:
        """Return a new buffer of pinned memory."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def start(self, source: Tensor, buffer: Tensor) -> Ended:
        """Start a copy that the GPU makes by itself."""
        with torch.cuda.device(source.device):
            buffer.copy_(source, non_blocking=True)
            ended = torch.cuda.Event()
            ended.record()
        return ended


class PinnedBuffers:
    """Copies bytes to main memory through two buffers, which are made once and used again.

    Threads may share it: one copies at a time.
    """

    def __init__(self, queue: CopyQueue, *, size: int = SIZE) -> None:
        """`size`: bytes of a buffer."""
        self._queue, self._size = queue, size
        self._buffers: Sequence[Tensor] = ()
        self._lock = Lock()

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy the bytes `source` [n] of a device into `target` [n] in main memory, and wait."""
        with self._lock:
            if not self._buffers:
                self._buffers = [self._queue.buffer(self._size) for _ in range(2)]
            before: tuple[Ended, Tensor, Tensor] | None = None
            pieces = zip(source.split(self._size), target.split(self._size), strict=True)
            for number, (piece, place) in enumerate(pieces):
                # The piece before the last one, which had the same buffer, has been copied.
                buffer = self._buffers[number % 2][: len(piece)]
                now = self._queue.start(piece, buffer), buffer, place
                if before is not None:
                    self._empty(*before)
                before = now
            if before is not None:
                self._empty(*before)

    @staticmethod
    def _empty(ended: Ended, buffer: Tensor, place: Tensor) -> None:
        ended.synchronize()
        place.copy_(buffer)


BUFFERS = PinnedBuffers(CudaQueue())
"""The buffers of this process, for all GPUs."""


def in_main_memory(tensor: Tensor, *, copy: bool = False) -> Tensor:
    """Return a tensor in main memory, without gradients.

    A tensor that is there already is returned itself, or a copy of it with `copy`. The local part
    of a distributed tensor is moved.
    """
    found = tensor.detach()
    local = found.to_local() if isinstance(found, DTensor) else found
    if local.device.type != STAGED or not local.is_contiguous() or not local.numel():
        return found.to("cpu", copy=copy)
    made = torch.empty_like(found, device="cpu")
    into: Any = made.to_local() if isinstance(made, DTensor) else made
    BUFFERS.copy(_bytes(local), _bytes(into))
    return made


def _bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor."""
    return tensor.view(-1).view(torch.uint8)
