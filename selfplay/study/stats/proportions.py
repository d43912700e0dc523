"""Intervals of proportions: successes among trials, where trials of a cluster are correlated.

The interval of Clopper and Pearson (1934) is exact for independent trials: it covers at least 95 %
for every probability of success and every number of trials. Korn and Graubard (1998) use it for
clustered trials: it is taken at the *effective* number of trials, which is the number of
independent trials whose proportion would vary as much as this one does.
"""

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
"""Probability with which an interval contains the true value."""
MOST_EXACT = 100
"""Degrees of freedom up to which Student's t is computed exactly; a series is used above."""
_STEPS = 60
"""Number of halvings of the interval in the search for a quantile."""


def clopper_pearson(successes: float, trials: float) -> tuple[float, float]:
    """Return the 95 % interval of a probability after `successes` of `trials` (may be fractions).

    NaN if there are no trials.
    """
    if trials <= 0:
        return math.nan, math.nan
    tail, failures = (1 - LEVEL) / 2, trials - successes
    low = beta_quantile(tail, successes, failures + 1) if successes > 0 else 0.0
    high = beta_quantile(1 - tail, successes + 1, failures) if failures > 0 else 1.0
    return low, high


def effective_trials(successes: np.ndarray, trials: np.ndarray) -> float:
    """Return the number of independent trials with the same variance as these clusters.

    It is p (1 - p) / V with V the cluster-robust variance of p, times (t_(n-1) / t_(K-1))^2 because
    V is itself estimated from K clusters; n is the number of trials. The result is at most n (all
    trials are independent) and at least n^2 / sum of squared cluster sizes, which is K for clusters
    of one size (all outcomes of a cluster are equal). It is this lower bound if all trials have the
    same outcome or K is 1, because V is then not known.

    Args:
        successes: [K] number of successes of each cluster.
        trials: [K] number of trials of each cluster; clusters without a trial are left out.
    """
    successes, trials = successes[trials > 0], trials[trials > 0]
    count, total = len(trials), float(trials.sum())
    if not count:
        return 0.0
    least = total**2 / float((trials**2).sum())
    chance = float(successes.sum()) / total
    spread = successes - chance * trials
    variance = count / max(count - 1, 1) * float(spread @ spread) / total**2
    if count < 2 or not 0 < chance < 1:
        return least
    if variance <= 0:
        return total
    unsure = student(round(total) - 1) / student(count - 1)
    return float(np.clip(chance * (1 - chance) / variance * unsure**2, least, total))


def beta_quantile(chance: float, a: float, b: float) -> float:
    """Return the quantile of a Beta(a, b) variable at this probability, in [0, 1]; a, b > 0."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if beta_below(middle, a, b) < chance else (low, middle)
    return (low + high) / 2


def beta_below(x: float, a: float, b: float) -> float:
    """Return P(Beta(a, b) < x), the regularised incomplete beta function.

    It uses the continued fraction (Abramowitz and Stegun 26.5.8, Lentz's method).
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction of the other tail converges faster
        return 1.0 - beta_below(1 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front += a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1.0 / _away(1 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 1000):
        change = 1.0
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away(1 + term * d, tiny)
            c = _away(1 + term / c, tiny)
            change = c * d
            fraction *= change
        if abs(change - 1) < 1e-14:
            break
    return math.exp(front) * fraction / a


def _away(value: float, tiny: float) -> float:
    """Return the value, or a tiny value instead of 0."""
    return value if abs(value) > tiny else tiny


@lru_cache(maxsize=1024)
def student(freedom: int, level: float = LEVEL) -> float:
    """Return the t with P(|T| < t) = `level` for Student's t, at 0.95 the 97.5 % point.

    The degrees of freedom are a whole number; the result is infinite for 0.
    """
    if freedom < 1:
        return math.inf
    if freedom > MOST_EXACT:  # the series of Abramowitz and Stegun 26.7.5, good to 1e-6 here
        z = NormalDist().inv_cdf((1 + level) / 2)
        first = (z**3 + z) / 4
        second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
        return z + first / freedom + second / freedom**2
    low, high = 0.0, 1.0
    while _between(high, freedom) < level:
        high *= 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _between(middle, freedom) < level else (low, middle)
    return low


def _between(t: float, freedom: int) -> float:
    """Return P(|T| < t) by the finite sums for whole degrees (Abramowitz and Stegun 26.7.3, 4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, term, total = math.cos(angle), 1.0, 0.0
    first = freedom % 2
    for step in range(first, freedom - 1, 2):
        if step == first:
            term = cosine if first else 1.0
        else:
            term *= cosine**2 * (step - 1) / step
        total += term
    if first:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
