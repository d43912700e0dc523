"""Series over training: trends and cycles, against what autocorrelated noise would show."""

import math
from collections.abc import Sequence

import numpy as np

from selfplay.study.intervals import RESAMPLES, Estimate, Numbers, percentiles

LEAST = 12
"""Values that a series needs for a trend or a cycle to be looked for."""
SURROGATES = 500


def trend(name: str, steps: Sequence[float], values: Sequence[float], *, seed: int = 0) -> Estimate:
    """The least-squares slope per 100 steps; residuals are drawn again in blocks, because
    neighbours in training resemble each other."""
    known = [(x, y) for x, y in zip(steps, values, strict=True) if math.isfinite(y)]
    if len(known) < LEAST:
        return Estimate(name=name, value=math.nan, notes=f"{len(known)} steps are too few")
    x, y = np.array(known).T
    slope, middle = np.polyfit(x, y, 1)
    fitted, count = slope * x + middle, len(x)
    block = max(2, round(count ** (1 / 2)))
    rng = np.random.default_rng(seed)
    begins = rng.integers(count - block + 1, size=(RESAMPLES, -(-count // block)))
    order = (begins[:, :, None] + np.arange(block)).reshape(RESAMPLES, -1)[:, :count]
    drawn = fitted + (y - fitted)[order]
    centred = x - x.mean()
    slopes = drawn @ centred / (centred @ centred)
    low, high = percentiles(100 * slopes)
    return Estimate(
        name=name,
        value=100 * float(slope),
        low=low,
        high=high,
        method=f"block bootstrap, {RESAMPLES} resamples of blocks of {block}",
        unit="block of steps",
        count=-(-count // block),
        null=0.0,
        notes="per 100 steps",
    )


def autocorrelation(values: np.ndarray) -> np.ndarray:
    """At lags 0 ... N/2, of what is left of the values behind a straight line; [0] is 1."""
    place = np.arange(len(values))
    left = values - np.polyval(np.polyfit(place, values, 1), place)
    power = float(left @ left)
    if power <= 1e-12 * max(1.0, float(values @ values)):
        return np.full(len(values) // 2 + 1, np.nan)
    return np.array(
        [float(left[: len(left) - lag] @ left[lag:]) / power for lag in range(len(left) // 2 + 1)]
    )


def peak(correlation: np.ndarray) -> tuple[int, float]:
    """(lag, height) of the highest value behind the first trough below 0; (0, 0) without one."""
    below = np.flatnonzero(correlation < 0)
    if not len(below):
        return 0, 0.0
    lag = int(below[0] + np.argmax(correlation[below[0] :]))
    return lag, max(0.0, float(correlation[lag]))


def oscillation(name: str, values: Sequence[float], *, seed: int = 0) -> Estimate:
    """The height of the first peak of the autocorrelation, with its period in `notes`.

    p is the share of AR(1) series with the same autocorrelation at lag 1 whose peak is as high:
    training curves are autocorrelated, so white noise would be no null.
    """
    known = np.array([value for value in values if math.isfinite(value)])
    if len(known) < LEAST:
        return Estimate(name=name, value=math.nan, notes=f"{len(known)} steps are too few")
    correlation = autocorrelation(known)
    if not math.isfinite(correlation[0]):
        return Estimate(name=name, value=math.nan, notes="it does not vary")
    lag, height = peak(correlation)
    rng = np.random.default_rng(seed)
    memory = float(np.clip(correlation[1], 0.0, 0.99))
    noise = rng.normal(size=(SURROGATES, len(known)))
    series = np.zeros_like(noise)
    series[:, 0] = noise[:, 0] / math.sqrt(1 - memory**2)
    for place in range(1, len(known)):
        series[:, place] = memory * series[:, place - 1] + noise[:, place]
    heights = np.array([peak(autocorrelation(each))[1] for each in series])
    return Estimate(
        name=name,
        value=height,
        count=len(known),
        unit="step on record",
        null=0.0,
        p=float((1 + (heights >= height).sum()) / (1 + SURROGATES)),
        notes=f"period {lag} steps on record" if lag else "no peak behind a trough",
    )


def circulation(x: Numbers, y: Numbers) -> float:
    """Signed area that the curve (x, y) goes around its centroid, per step: half the sum of
    x_t y_t+1 - x_t+1 y_t. Above 0 is counter-clockwise."""
    a, b = np.asarray(x) - np.mean(x), np.asarray(y) - np.mean(y)
    return float((a[:-1] * b[1:] - a[1:] * b[:-1]).sum() / 2 / max(1, len(a) - 1))
