"""Mutual information of two discrete variables from few samples, in nats.

The plug-in estimate from counts is biased up by about (K_x - 1)(K_y - 1) / 2N, and by less than
that if many values are rare. Two corrections are computed, and the smaller one is the estimate. The
adjustment for chance (Vinh, Epps and Bailey 2010, JMLR 11) is 0 in the mean of random pairings, and
too large for noisy codes. The jackknife is nearly unbiased with many samples, and too large if many
values are rare. A code without errors keeps its information under both. A permutation test decides
if there is any information at all. There is no estimate if nearly every value occurs once: any two
variables would then seem dependent.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from selfplay.study.stats.bootstrap import Estimate

PERMUTATIONS = 1000
"""Number of random pairings of the permutation test."""
MOST_BY_CHANCE = 1 / 2
"""Largest information of random pairings with an estimate, as a fraction of what is possible."""
MOST_FOR_INTERVAL = 0.15
"""Largest information of random pairings with an interval, as a fraction of what is possible. Above
it, the estimate can be farther from the truth than the interval says."""


def plug_in(x: Sequence[Hashable], y: Sequence[Hashable]) -> float:
    """Return I(x; y) of the empirical distribution in nats; NaN without samples."""
    if not x:
        return math.nan
    return _from_counts(Counter(zip(x, y, strict=True)), Counter(x), Counter(y), len(x))


def adjusted(whole: float, chance: float, most: float) -> float:
    """Return information adjusted for chance, in nats; it may be negative.

    Args:
        whole: Plug-in estimate.
        chance: Mean plug-in estimate of random pairings, which becomes 0.
        most: Largest possible information, which stays as it is: the smaller of both entropies.
    Returns:
        NaN if random pairings have all of the possible information.
    """
    if most == 0:
        return 0.0
    return most * (whole - chance) / (most - chance) if chance < most else math.nan


def largest(x: Sequence[Hashable], y: Sequence[Hashable]) -> float:
    """Return the largest possible information of x and y in nats: the smaller of both entropies."""
    return min(_entropy(_codes(x)), _entropy(_codes(y))) if x else math.nan


def corrected(x: Sequence[Hashable], y: Sequence[Hashable], *, chance: float) -> float:
    """Return the information of x and y in nats: the smaller of both corrections.

    It may be negative. `chance` is the mean plug-in estimate of random pairings. NaN for fewer than
    three samples, or if `chance` is above `MOST_BY_CHANCE`.
    """
    most = largest(x, y)
    if len(x) < 3 or chance > MOST_BY_CHANCE * most:
        return math.nan
    return min(jackknife(x, y)[0], adjusted(plug_in(x, y), chance, most))


def mutual_information(name: str, x: Sequence[Hashable], y: Sequence[Hashable]) -> Estimate:
    """Return the information of x and y, see `corrected`, its interval and a permutation test's p.

    The interval has both corrections inside, and 1.96 standard errors of the jackknife on either
    side. There is none if the information of random pairings is above `MOST_FOR_INTERVAL`.
    """
    count = len(x)
    if count < 3:
        return Estimate(name=name, value=math.nan, notes=f"{count} samples are too few")
    whole, most = plug_in(x, y), largest(x, y)
    p, chance = _permuted(x, y, whole)
    values = f"{len(set(x))} x {len(set(y))} different values"
    notes = f"nats; plug-in {whole:.4g}, {chance:.4g} by chance, of {values}"
    (middle, error), other = jackknife(x, y), adjusted(whole, chance, most)
    value, low, high = min(middle, other), math.nan, math.nan
    if chance > MOST_BY_CHANCE * most:
        value = math.nan
        notes += ": too many for so few samples"
    elif chance > MOST_FOR_INTERVAL * most:
        notes += ": too many for an interval"
    else:
        half = 1.959964 * error * (most / (most - chance) if most else 1.0)
        low, high = value - half, min(max(middle, other) + half, most)
    return Estimate(
        name=name,
        value=value,
        low=low,
        high=high,
        method="jackknife, normal" if math.isfinite(low) else "",
        unit="episode",
        count=count,
        direction="unknown",
        null=0.0,
        p=p,
        notes=notes,
    )


def jackknife(x: Sequence[Hashable], y: Sequence[Hashable]) -> tuple[float, float]:
    """Return the jackknife estimate of the information of x and y, and its standard error, in nats.

    One sample, a pair of x and y, is left out at a time. Needs at least two samples.
    """
    count, rows, columns = len(x), Counter(x), Counter(y)
    cells = [(n, rows[a], columns[b]) for (a, b), n in Counter(zip(x, y, strict=True)).items()]
    joint, of_row, of_column = np.array(cells, dtype=float).T
    margins = [np.array(list(each.values()), dtype=float) for each in (rows, columns)]
    total = _log_times(joint).sum() - sum(_log_times(each).sum() for each in margins)
    whole = total / count + math.log(count)
    less, row_less, column_less = (
        _log_times(each) - _log_times(each - 1) for each in (joint, of_row, of_column)
    )
    left = (total - less + row_less + column_less) / (count - 1) + math.log(count - 1)
    pseudo = count * whole - (count - 1) * left
    middle = float(joint @ pseudo / count)
    variance = float(joint @ (pseudo - middle) ** 2 / (count - 1))
    # A code without errors has at most its entropy.
    return min(middle, largest(x, y)), math.sqrt(variance / count)


def _log_times(counts: np.ndarray) -> np.ndarray:
    """Return n log n of counts; 0 for n = 0."""
    return np.asarray(counts * np.log(np.maximum(counts, 1)))


def _permuted(x: Sequence[Hashable], y: Sequence[Hashable], observed: float) -> tuple[float, float]:
    """Return the p of the permutation test, and the mean information of random pairings."""
    found = random_pairings(x, y, times=PERMUTATIONS)
    above = int((found >= observed - 1e-12).sum())
    return (1 + above) / (1 + PERMUTATIONS), float(found.mean())


def random_pairings(x: Sequence[Hashable], y: Sequence[Hashable], *, times: int) -> np.ndarray:
    """Return the [times] plug-in estimates, in nats, of random pairings of x and y."""
    rng, rows, columns = np.random.default_rng(0), _codes(x), _codes(y)
    width = int(columns.max()) + 1
    margins = _entropy(rows) + _entropy(columns)
    return np.array(
        [margins - _entropy(rows * width + rng.permutation(columns)) for _ in range(times)]
    )


def _codes(values: Sequence[Hashable]) -> np.ndarray:
    known = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([known[value] for value in values])


def entropy(chances: np.ndarray) -> np.ndarray:
    """Return the [...] entropies in nats of [..., K] probabilities."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(0.0 - np.where(chances == 0, 0.0, chances * np.log(chances)).sum(-1))


def _entropy(codes: np.ndarray) -> float:
    counts = np.bincount(codes)
    return float(entropy(counts[counts > 0] / len(codes)))


def _from_counts(
    joint: Counter[tuple[Hashable, Hashable]],
    rows: Counter[Hashable],
    columns: Counter[Hashable],
    count: int,
) -> float:
    return sum(
        times / count * math.log(times * count / (rows[a] * columns[b]))
        for (a, b), times in joint.items()
        if times
    )
