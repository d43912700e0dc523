"""Intervals over training runs of a matrix whose cells are pairs of runs, such as cross-play.

A mean over pairs of N runs is a U-statistic: cells that share a run vary together. Its variance has
two parts. The first is the effect of a single run, whatever its partner; the jackknife over runs
estimates it. The second is the effect of the pair. If every run learns one of two codes with
equal probability, the first part is exactly 0 (the statistic is degenerate): every run
agrees with half of the others, and a jackknife alone says "no spread". Both parts are therefore
added, and Student's t with N - 1 degrees of freedom gives the interval.

If all runs are alike there is no variance to estimate, and the interval comes from the probability
that runs of another kind were missed: N runs that are pairwise alike are seen with probability at
most s^(N/2), where s is the probability that two runs are alike. With 97.5 % confidence, at most
1 - 0.025^(2/N) of all pairs are thus of runs that differ, and these may have any value in the range
of the metric. Runs count as alike if the gap of self-play to cross-play is smaller than 1/N of
that range, which is half of the gap that one run with a different code would cause.

The variance is that of Hoeffding (1948); both parts together are never too small in expectation,
because the jackknife includes a part of the second one (Efron and Stein 1981).
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from selfplay.study.stats.bootstrap import Estimate, over_runs, over_runs_of
from selfplay.study.stats.proportions import LEVEL, student

METHOD = "U-statistic over runs, both orders of its variance, Student's t"
ALIKE = "runs look alike: the interval allows for other codes that so few runs can miss"

ROUNDING = 1e-12
"""Largest difference of equal means that rounding explains."""

Range = tuple[float, float]
"""(smallest, largest) value."""


def over_pairs(means: np.ndarray, span: Range) -> list[Estimate]:
    """Return self-play, cross-play and gap of [N, N] cell means with 95 % intervals over runs.

    The intervals stay within the possible values for a metric in `span`. There are no intervals if
    a cell is NaN, and none of cross-play and the gap for fewer than three runs.
    """
    own = np.diagonal(means)
    least, most = span
    alone = float(own.mean())
    apart = rounded((own[:, None] + own[None]) / 2 - (means + means.T) / 2)
    gap = between(apart)
    alike = abs(gap) < (most - least) / len(means)
    extremes = ((alone + least) / 2 - most, (alone + most) / 2 - least)
    return [
        over_runs("self-play, over runs", own, bounds=span),
        _mean_over_pairs("cross-play, over runs", (means + means.T) / 2, span, alike=alike),
        _mean_over_pairs(
            "gap, over runs",
            apart,
            extremes,
            alike=alike,
            bounds=differences(span),
            null=0.0,
        ),
    ]


def rounded(differences: np.ndarray) -> np.ndarray:
    """Return differences of means, with 0 for those that rounding explains."""
    return np.where(np.abs(differences) < ROUNDING, 0.0, differences)


def between(kernel: np.ndarray) -> float:
    """Return the mean over pairs of different runs of a symmetric [N, N] matrix."""
    count = len(kernel)
    return float((kernel.sum() - np.trace(kernel)) / (count * (count - 1)))


def variance(kernel: np.ndarray) -> float:
    """Return the variance of `between` over draws of N runs, with both of its parts; NaN for N < 3.

    `kernel` is a symmetric [N, N] matrix.
    """
    count = len(kernel)
    if count < 3:
        return math.nan
    rows = kernel.sum(1) - np.diagonal(kernel)
    left = (rows.sum() - 2 * rows) / ((count - 1) * (count - 2))
    first = (count - 1) / count * float(((left - left.mean()) ** 2).sum())
    pairs = kernel[np.triu_indices(count, 1)]
    return first + 2 * float(pairs.var(ddof=1)) / (count * (count - 1))


def unseen(count: int) -> float:
    """Return the bound on the fraction of pairs that differ, if `count` runs are all alike."""
    return 1.0 - ((1 - LEVEL) / 2) ** (2 / count)


def span_of(scores: Iterable[np.ndarray]) -> Range:
    """Return the range of a metric in these games.

    It is 0 to 1 if all values are within it, else from the smallest to the largest value. NaN
    values are left out; (NaN, NaN) if there is no value.
    """
    known = np.concatenate([np.ravel(each) for each in scores])
    known = known[np.isfinite(known)]
    if not len(known):
        return math.nan, math.nan
    least, most = float(known.min()), float(known.max())
    return (0.0, 1.0) if least >= 0 and most <= 1 else (least, most)


def differences(span: Range) -> Range:
    """Return the range of the difference of two values in a range."""
    return span[0] - span[1], span[1] - span[0]


def _mean_over_pairs(
    name: str,
    kernel: np.ndarray,
    extremes: Range,
    *,
    alike: bool,
    bounds: Range | None = None,
    **more: Any,
) -> Estimate:
    """Return the mean over pairs; `extremes` are the smallest and largest value of a pair."""
    count, value = len(kernel), between(kernel)
    half = student(count - 1) * math.sqrt(variance(kernel)) if count > 2 else math.nan
    low, high = value - half, value + half
    if alike and count > 2:
        low = min(low, value + unseen(count) * (extremes[0] - value))
        high = max(high, value + unseen(count) * (extremes[1] - value))
        more["notes"] = ALIKE
    return over_runs_of(name, value, (low, high), count, METHOD, bounds=bounds or extremes, **more)
