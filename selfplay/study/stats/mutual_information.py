"""Mutual information of two discrete variables from few samples, in nats.

The plug-in estimate from counts is biased up by about (K_x - 1)(K_y - 1) / 2N. The jackknife
removes most of this bias and gives the interval. A permutation test decides if there is any
information at all, because the interval of a quantity that cannot be negative is poor at zero.
There is no estimate if nearly every value occurs once: any two variables would then seem dependent.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from selfplay.study.stats.bootstrap import Estimate

PERMUTATIONS = 1000
"""Number of random pairings of the permutation test."""


def plug_in(x: Sequence[Hashable], y: Sequence[Hashable]) -> float:
    """Return I(x; y) of the empirical distribution in nats; NaN without samples."""
    if not x:
        return math.nan
    return _from_counts(Counter(zip(x, y, strict=True)), Counter(x), Counter(y), len(x))


def miller_madow(x: Sequence[Hashable], y: Sequence[Hashable]) -> float:
    """Return the plug-in estimate minus its leading bias, in nats; NaN without samples.

    The bias is estimated from the numbers of different values of x, of y and of their pairs.
    """
    if not x:
        return math.nan
    cells = len(set(zip(x, y, strict=True)))
    return plug_in(x, y) - (cells - len(set(x)) - len(set(y)) + 1) / (2 * len(x))


def mutual_information(name: str, x: Sequence[Hashable], y: Sequence[Hashable]) -> Estimate:
    """Return the jackknife estimate with its interval and the p of a permutation test.

    NaN for fewer than three samples, or if random pairings have more than half of the largest
    possible information.
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
    value = float((weights * pseudo).sum() / count)
    variance = float((weights * (pseudo - value) ** 2).sum() / (count - 1))
    half = 1.959964 * math.sqrt(variance / count)
    # Mutual information is at most the entropy of either variable.
    most = min(_entropy(_codes(x)), _entropy(_codes(y)))
    low, value, high = (min(end, most) for end in (value - half, value, value + half))
    p, chance = _permuted(x, y, whole)
    values = f"{len(rows)} x {len(columns)} different values"
    notes = f"nats; plug-in {whole:.4g}, {chance:.4g} by chance, of {values}"
    if chance > most / 2:
        low = value = high = math.nan
        notes += ": too many for so few samples"
    return Estimate(
        name=name,
        value=value,
        low=low,
        high=high,
        method="jackknife, normal",
        unit="episode",
        count=count,
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
