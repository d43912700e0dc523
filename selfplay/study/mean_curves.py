"""Mean curves of sets of runs, whose runs may have their points at different steps.

A long curve has only every k-th point of its run, and k depends on the length of the run. So each
curve is interpolated between its own points before the mean over runs is taken.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from selfplay.study.plots import CurvePlot


def mean_curves(sets: Mapping[str, Sequence[CurvePlot]]) -> CurvePlot:
    """Return the curves of the sets, NaN where a run of a set has no value.

    A run that has no value in a series is left out of the mean of this series. The band of a curve
    goes from the lowest to the highest run.

    Args:
        sets: Set to the curves of its runs; there is at least one curve.
    """
    first = next(iter(sets.values()))[0]
    places = sorted({at for curves in sets.values() for curve in curves for at in curve.x})
    series: dict[str, Sequence[float]] = {}
    bands: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    every = [curve for curves in sets.values() for curve in curves]
    single = len({kind for curve in every for kind in curve.series}) == 1
    for name, curves in sets.items():
        for kind in dict.fromkeys(kind for curve in curves for kind in curve.series):
            label = name if single else f"{name}, {kind}"
            rows = [_at(places, curve, kind) for curve in curves]
            known = [row for row in rows if np.isfinite(row).any()] or rows
            mean, low, high = (of(known, axis=0).tolist() for of in (np.mean, np.min, np.max))
            series[label], bands[label] = mean, (low, high)
    return CurvePlot(
        title=first.title,
        x=places,
        series=series,
        bands=bands,
        xlabel=first.xlabel,
        label=first.label,
        logarithmic=first.logarithmic,
        percent=first.percent,
    )


def _at(places: Sequence[float], curve: CurvePlot, kind: str) -> np.ndarray:
    """Return [places] values of a series; linear between its points, and NaN outside of them."""
    if kind not in curve.series or not len(curve.x):
        return np.full(len(places), np.nan)
    return np.interp(places, curve.x, curve.series[kind], left=np.nan, right=np.nan)
