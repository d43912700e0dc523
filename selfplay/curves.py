"""Curves of many points: what of them is drawn."""

import math
from collections.abc import Sequence

import numpy as np

MOST_POINTS = 800
"""Points of one curve that are drawn."""


def running_mean(
    values: Sequence[float], window: int, places: Sequence[int] | None = None
) -> list[float]:
    """Mean of the up to `window` values that end at each place, the finite ones among them.

    [N] values to [N] means, or as many as there are `places`.
    """
    array, means = np.asarray(values, dtype=float), []
    for end in range(len(values)) if places is None else places:
        near = array[max(0, end + 1 - window) : end + 1]
        near = near[np.isfinite(near)]
        means.append(float(near.mean()) if near.size else math.nan)
    return means


def thinned(values: Sequence[float]) -> list[int]:
    """Places of about `MOST_POINTS` values that look as all of them do.

    Of a longer curve the lowest and the highest of each stretch, and the last.
    """
    count, stretches = len(values), MOST_POINTS // 2
    if count <= MOST_POINTS:
        return list(range(count))
    places = {count - 1}
    for number in range(stretches):
        stretch = range(number * count // stretches, (number + 1) * count // stretches)
        finite = [place for place in stretch if math.isfinite(values[place])]
        for extreme in (min, max) if finite else ():
            places.add(extreme(finite, key=values.__getitem__))
    return sorted(places)


def smoothing(points: int) -> int:
    """Steps over which a curve of so many points is averaged; 1 draws it as it is."""
    return points // 25 if points >= 50 else 1
