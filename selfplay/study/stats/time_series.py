"""Time series over training: trends and cycles, compared with autocorrelated noise."""

import math
from collections.abc import Sequence

import numpy as np

from selfplay.study.stats.bootstrap import Estimate, percentiles

LEAST = 12
"""Smallest number of values of a series for a trend or a cycle."""
SURROGATES = 500
"""Number of random series that a series is compared with."""
LARGEST = 1e100
"""Largest recorded number that is used."""
TOO_NARROW = "; the interval is too narrow because the autocorrelation is long for this series"


def measurable(value: float) -> float:
    """Return a recorded number as a float.

    NaN if it is not finite or beyond `LARGEST`, because sums of squares would overflow.
    """
    try:
        found = float(value)
    except OverflowError:  # a whole number with hundreds of digits
        return math.nan
    return found if abs(found) <= LARGEST else math.nan


def trend(name: str, steps: Sequence[float], values: Sequence[float], *, seed: int = 0) -> Estimate:
    """Return the least-squares slope per 100 steps, with an interval from AR(1) surrogates.

    Neighbouring steps of training are correlated, so the noise around the line is AR(1). Its
    autocorrelation is corrected for the fitted line. In a short series with a long autocorrelation,
    the interval is still too narrow. The value is NaN for fewer than `LEAST` finite values.
    """
    pairs = [(measurable(x), measurable(y)) for x, y in zip(steps, values, strict=True)]
    known = [pair for pair in pairs if not any(map(math.isnan, pair))]
    if len(known) < LEAST:
        return Estimate(name=name, value=math.nan, notes=f"{len(known)} steps are too few")
    x, y = np.array(known).T
    slope, middle = np.polyfit(x, y, 1)
    left, count = y - slope * x - middle, len(x)
    memory, power = 0.0, float(left @ left)
    if power > 1e-12 * max(1.0, float(y @ y)):
        memory = float(left[:-1] @ left[1:]) / power
        # Fitting a line lowers the estimate by about (2 + 4 memory) / count (Shaman, Stine 1988).
        memory = float(np.clip((count * memory + 2) / (count - 4), 0.0, 0.99))
    shocks = left[1:] - memory * left[:-1]
    spread = math.sqrt(float(shocks @ shocks) / (count - 3))
    centred = x - x.mean()
    noise = spread * surrogates(memory, count, seed)
    low, high = percentiles(100 * (slope + noise @ centred / (centred @ centred)))
    return Estimate(
        name=name,
        value=100 * float(slope),
        low=low,
        high=high,
        method=f"{SURROGATES} AR(1) surrogates with memory {memory:.2f}",
        unit="step on record",
        count=count,
        null=0.0,
        notes="per 100 steps" + TOO_NARROW * (count * (1 - memory) < LEAST * (1 + memory)),
    )


def surrogates(memory: float, count: int, seed: int) -> np.ndarray:
    """Return [SURROGATES, count] stationary AR(1) series of unit shocks."""
    noise = np.random.default_rng(seed).normal(size=(SURROGATES, count))
    series = np.zeros_like(noise)
    series[:, 0] = noise[:, 0] / math.sqrt(1 - memory**2)
    for place in range(1, count):
        series[:, place] = memory * series[:, place - 1] + noise[:, place]
    return series


def autocorrelation(values: np.ndarray) -> np.ndarray:
    """Return the autocorrelation of [N] values around a straight line, at lags 0 ... N/2.

    All are NaN if the values do not vary around the line.
    """
    place = np.arange(len(values))
    left = values - np.polyval(np.polyfit(place, values, 1), place)
    power = float(left @ left)
    if power <= 1e-12 * max(1.0, float(values @ values)):
        return np.full(len(values) // 2 + 1, np.nan)
    return np.array(
        [float(left[: len(left) - lag] @ left[lag:]) / power for lag in range(len(left) // 2 + 1)]
    )


def peak(correlation: np.ndarray) -> tuple[int, float]:
    """Return (lag, height) of the highest value after the first negative one.

    Return (0, 0) if no value is negative, or if none after it is positive.
    """
    below = np.flatnonzero(correlation < 0)
    if not len(below):
        return 0, 0.0
    lag = int(below[0] + np.argmax(correlation[below[0] :]))
    height = float(correlation[lag])
    return (lag, height) if height > 0 else (0, 0.0)


def oscillation(name: str, values: Sequence[float], *, seed: int = 0) -> Estimate:
    """Return the height of the first peak of the autocorrelation, with its period in `notes`.

    p is the fraction of AR(1) series with the same autocorrelation at lag 1 that have a peak at
    least as high. White noise would be the wrong null, because training curves are autocorrelated.
    The value is NaN for fewer than `LEAST` finite values, and for values on a straight line.
    """
    found = [measurable(value) for value in values]
    known = np.array([value for value in found if not math.isnan(value)])
    if len(known) < LEAST:
        return Estimate(name=name, value=math.nan, notes=f"{len(known)} steps are too few")
    correlation = autocorrelation(known)
    if not math.isfinite(correlation[0]):
        return Estimate(name=name, value=math.nan, notes="it does not vary")
    lag, height = peak(correlation)
    memory = float(np.clip(correlation[1], 0.0, 0.99))
    series = surrogates(memory, len(known), seed)
    heights = np.array([peak(autocorrelation(each))[1] for each in series])
    return Estimate(
        name=name,
        value=height,
        count=len(known),
        unit="step on record",
        null=0.0,
        p=float((1 + (heights >= height).sum()) / (1 + SURROGATES)),
        notes=f"period {lag} steps on record" if lag else "no peak after a trough",
    )
