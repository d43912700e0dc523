"""Times the parts of a publication of weights in one process, without Ray: sums and copies.

The sender sums its weights and Ray copies them into shared memory; the worker copies them into its
model and sums what it has. The worker's part is timed in two ways, in turns: whole tensors that
are copied and then summed, and pieces of several sizes (`copy_and_sum`). Other checksums are timed
too, from main memory and from the processor's cache.

All times are CPU time of one thread, as milliseconds per 512 MB.

Usage: python scripts/bench_weights_parts.py [--megabytes 64] [--rounds 25] [--json FILE]
"""

import mmap
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from bench_timing import Line, arguments, compared, interleaved, show

from selfplay.runtime import weight_sync
from selfplay.runtime.weight_sync import checksum, copy_and_sum

TENSOR = 2**24
"""Bytes of a tensor, those of scripts/bench_weights.py with 512 MB."""
PIECES = (2**19, 2**20, 2**21, 2**22, 2**23)
"""Sizes of the pieces that are compared, in bytes."""
CACHED = 2**19
"""Bytes that stay in the cache of one core."""


def each(way: Callable[[torch.Tensor], object], parts: Sequence[torch.Tensor]) -> None:
    """Sum all parts with `way`."""
    for part in parts:
        way(part)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = max(1, options.megabytes * 2**20 // TENSOR)
    scale = 2**29 / (count * TENSOR) * 1000
    shared = torch.frombuffer(mmap.mmap(-1, count * TENSOR), dtype=torch.float32)
    store = shared.split(TENSOR // 4)
    torch.manual_seed(0)
    learned = [torch.randn(TENSOR // 4) for _ in store]
    served = [torch.zeros(TENSOR // 4) for _ in store]

    def stored() -> None:
        for source, target in zip(learned, store, strict=True):
            target.copy_(source)

    def copied() -> None:
        for source, target in zip(store, served, strict=True):
            target.copy_(source)

    def whole() -> list[int]:
        copied()
        return [checksum(tensor) for tensor in served]

    def pieces(size: int) -> list[int]:
        weight_sync.PIECE = size
        return [copy_and_sum(*pair) for pair in zip(store, served, strict=True)]

    stored()
    right = [checksum(tensor) for tensor in learned]
    ways: dict[int, Callable[[], object]] = {s: partial(pieces, s) for s in PIECES}
    checked: list[Callable[[], object]] = [whole, *ways.values()]
    for found in checked:
        for tensor in served:
            tensor.zero_()
        if found() != right:
            raise SystemExit("a way of copying gives other checksums; do not trust these times")
    words = [tensor.view(torch.uint8).view(torch.int64) for tensor in learned]
    few = words[0][: CACHED // 8]
    again = count * TENSOR // CACHED
    named: dict[str, Callable[[torch.Tensor], object]] = {
        "the sum of words (torch)": lambda part: part.sum(),
        "the sum of words (numpy)": lambda part: np.add.reduce(part.numpy()),
        "zlib.crc32": lambda part: zlib.crc32(part.numpy().data),
    }
    works: dict[str, Callable[[], object]] = {
        "whole": whole,
        **{f"{size // 1024} kB": way for size, way in ways.items()},
        "sender: copy into shared memory": stored,
        "worker: copy of whole tensors": copied,
        "worker: checksums of whole tensors": lambda: [checksum(tensor) for tensor in served],
        **{f"{name}, main memory": partial(each, way, words) for name, way in named.items()},
        **{f"{name}, cache": partial(each, way, [few] * again) for name, way in named.items()},
    }
    seconds = {
        name: [one * scale for one in spent]
        for name, spent in interleaved(works, options.rounds, clock=time.thread_time).items()
    }
    lines: list[Line] = []
    for name, spent in seconds.items():
        if name == "whole":
            continue
        line = compared(name, spent, seconds["whole"])
        if name.endswith(" kB"):
            line = replace(line, what=f"worker: pieces of {name}, compared with whole tensors")
        else:
            line = replace(line, other=None, ratio=None, low=None, high=None)
        lines.append(replace(line, unit="ms"))
    show(lines, options.json)


if __name__ == "__main__":
    main()
