"""Mutual information of two discrete variables from few samples, in nats.

The plug-in estimate from counts is biased up by about (K_x - 1)(K_y - 1) / 2N, and by less than
that if many values are rare. It is therefore adjusted for chance (Vinh, Epps and Bailey 2010, JMLR
11): the mean information of random pairings becomes 0, and the information of a code without errors
stays what it is. A permutation test decides if there is any information at all. There is no
estimate if nearly every value occurs once: any two variables would then seem dependent.
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
MOST_FOR_INTERVAL = 1 / 4
"""Largest information of random pairings with an interval, as a fraction of what is possible. Above
it, the estimate can be too low by more than the interval says."""


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


def mutual_information(name: str, x: Sequence[Hashable], y: Sequence[Hashable]) -> Estimate:
    """Return the information adjusted for chance, its interval and the p of a permutation test.

    The interval is about other samples with these values of x: its width is that of the jackknife.
    The value is NaN for fewer than three samples, or if the information of random pairings is above
    `MOST_BY_CHANCE`; above `MOST_FOR_INTERVAL` there is no interval.
    """
    count, joint, rows, columns = len(x), Counter(zip(x, y, strict=True)), Counter(x), Counter(y)
    whole = plug_in(x, y)
    if count < 3:
        return Estimate(name=name, value=math.nan, notes=f"{count} samples are too few")
    left, weight = [], []
    for (a, b), times in joint.items():
        joint[a, b], rows[a], columns[b] = times - 1, rows[a] - 1, columns[b] - 1
        left.append(_from_counts(joint, rows, columns, count - 1))
        weight.append(times)
        joint[a, b], rows[a], columns[b] = times, rows[a] + 1, columns[b] + 1
    pseudo, weights = count * whole - (count - 1) * np.array(left), np.array(weight)
    middle = float((weights * pseudo).sum() / count)
    variance = float((weights * (pseudo - middle) ** 2).sum() / (count - 1))
    most = largest(x, y)
    p, chance = _permuted(x, y, whole)
    value, low, high = adjusted(whole, chance, most), math.nan, math.nan
    values = f"{len(rows)} x {len(columns)} different values"
    notes = f"nats; plug-in {whole:.4g}, {chance:.4g} by chance, of {values}"
    if chance > MOST_BY_CHANCE * most:
        value = math.nan
        notes += ": too many for so few samples"
    elif chance > MOST_FOR_INTERVAL * most:
        notes += ": too many for an interval"
    else:
        scale = most / (most - chance) if most else 1.0
        half = 1.959964 * scale * math.sqrt(variance / count)
        low, high = value - half, min(value + half, most)
    return Estimate(
        name=name,
        value=value,
        low=low,
        high=high,
        method="jackknife, normal",
        unit="episode",
        count=count,
        direction="unknown",
        null=0.0,
        p=p,
        notes=notes,
    )


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
