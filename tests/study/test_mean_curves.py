"""Mean curves of runs that differ in length and in the steps of their points."""

import json
from math import nan
from pathlib import Path

import numpy as np
import pytest

from selfplay.study.mean_curves import mean_curves
from selfplay.study.measures import metrics
from selfplay.study.plots import CurvePlot

REWARD = "role/solver/reward"


def recorded(run: Path, value: float, *, steps: int) -> CurvePlot:
    """Return the curve of a run whose reward is the same at each step."""
    run.mkdir()
    rows = [json.dumps({"step": step, REWARD: value}) + "\n" for step in range(steps)]
    (run / "metrics.jsonl").write_text("".join(rows))
    (curve,) = metrics.study(run).drawings
    assert isinstance(curve, CurvePlot)
    return curve


def test_runs_of_other_lengths_have_a_mean_to_the_end_of_the_shorter(tmp_path: Path) -> None:
    """One curve is thinned to its odd steps, and the other one to its even steps."""
    long = recorded(tmp_path / "long", 0.2, steps=1000)
    short = recorded(tmp_path / "short", 0.8, steps=701)
    assert (long.x[-1], short.x[-1], long.x[0], short.x[0]) == (999, 700, 1, 0)
    merged = mean_curves({"all": [long, short], "long": [long]})
    x, mean = np.array(merged.x), np.array(merged.series["all"])
    both = (x >= 1) & (x <= 700)
    assert both.sum() == 700 and (~both).sum() > 100
    np.testing.assert_allclose(mean[both], 0.5)
    assert np.isnan(mean[~both]).all()
    low, high = (np.array(end) for end in merged.bands["all"])
    np.testing.assert_allclose(low[both], 0.2)
    np.testing.assert_allclose(high[both], 0.8)
    # A set is drawn to its own end, and has values at the steps of the other sets too.
    alone = np.array(merged.series["long"])
    np.testing.assert_allclose(alone[x >= 1], 0.2)


def test_a_run_is_interpolated_but_not_over_an_undefined_value() -> None:
    def curve(x: list[float], values: list[float]) -> CurvePlot:
        return CurvePlot(title="t", x=x, series={"c": values}, bands={}, label="y")

    one = curve([0, 1, 2, 3, 4], [0, 0, 0, 0, 0])
    other = curve([0, 2, 3, 4], [4, 8, nan, 2])
    merged = mean_curves({"all": [one, other]})
    assert merged.series["all"] == pytest.approx([2, 3, 4, nan, 1], nan_ok=True)
    empty = mean_curves({"all": [one, curve([], [])], "none": [curve([0, 4], [nan, nan])]})
    assert empty.series["all"] == [0] * 5
    assert empty.series["none"] == pytest.approx([nan] * 5, nan_ok=True)


def test_curves_that_only_one_set_has_are_not_lost() -> None:
    def curve(**series: list[float]) -> CurvePlot:
        return CurvePlot(title="t", x=[0.0, 1.0], series=series, bands={}, xlabel="x", label="y")

    merged = mean_curves(
        {
            "shared": [curve(base=[1.0, 2.0])],
            "separate": [curve(solver=[3.0, 4.0]), curve(solver=[5.0, 6.0], proposer=[7.0, 8.0])],
        }
    )
    assert {name: list(values) for name, values in merged.series.items()} == {
        "shared, base": [1.0, 2.0],
        "separate, solver": [4.0, 5.0],
        "separate, proposer": [7.0, 8.0],
    }
    alone = mean_curves({"a": [curve(base=[1.0, 2.0])], "b": [curve(base=[3.0, 4.0])]})
    assert list(alone.series) == ["a", "b"]
