"""Parts of GPUs as Ray reserves them: a part lies on one GPU, and several actors may share it."""

from collections.abc import Iterable
from math import ceil

STEP = 10_000
"""Ray counts GPUs in steps of 1 / STEP."""


def gpus_needed(parts: Iterable[float]) -> int:
    """Return the number of GPUs that actors with these numbers of GPUs need.

    An actor with less than one GPU has its part on a single GPU: one GPU holds one actor with 0.6
    and three with 0.3. The largest parts are placed first, each on the first GPU that has room.
    For parts of two sizes, those of workers and of one rank, no other placement needs fewer GPUs.
    """
    sizes = sorted((round(part * STEP) for part in parts), reverse=True)
    whole = sum(size for size in sizes if size >= STEP)
    rooms: list[int] = []
    for size in sizes:
        if not 0 < size < STEP:
            continue
        place = next((index for index, room in enumerate(rooms) if room >= size), None)
        if place is None:
            rooms.append(STEP - size)
        else:
            rooms[place] -= size
    return ceil(whole / STEP) + len(rooms)
