"""Charts: how metrics are grouped, and that a drawing holds geometry and text alone."""

import math
from math import nan
from pathlib import Path

import pytest

from selfplay.run.declarations import ArenaMetrics, RunMetrics
from selfplay.run.report.charts import (
    MOST_POINTS,
    MOST_SERIES,
    Chart,
    Series,
    arrange,
    downsample,
    draw,
    running_mean,
)
from selfplay.study.figure_files import save
from selfplay.study.plots import IntervalPlot, MatrixPlot, inline
from selfplay.study.stats.bootstrap import Estimate
from selfplay.types import Metric


def test_curves_are_grouped_by_prefix_and_last_segment() -> None:
    rows = {
        1: {
            "role/a/reward": 1.0,
            "role/b/reward": 2.0,
            "arena/solve_rate": 0.5,
            "arena/abduction/solve_rate": 0.2,
            "evaluation/held/accuracy": 0.1,
            "evaluation/held/abduction/accuracy": 0.1,
            "role/a/verdict/correct": 0.5,
            "role/a/verdict/wrong": 0.5,
            "service/executor/timeout": 1,
            "service/executor/ok": 7,
            "seconds/learn": 1,
            "seconds/total": 2,
            "odd/x": math.inf,
            **{f"policy/p{i}/loss": 0.1 for i in range(MOST_SERIES + 2)},
        }
    }
    fraction = ArenaMetrics(metrics={"accuracy": Metric(unit="fraction")})
    declared = RunMetrics(evaluations={"held": fraction})
    charts = {chart.title: chart for section in arrange(rows, declared) for chart in section.charts}
    labels = {title: [series.label for series in chart.series] for title, chart in charts.items()}
    assert labels["Reward per role"] == ["a", "b"]
    assert labels["Solve rate by task type"] == ["all", "abduction"]
    assert labels["Evaluation accuracy"] == ["held"]
    assert labels["Accuracy: held"] == ["abduction"]
    assert labels["Verdict: a"] == ["correct", "wrong"] and charts["Verdict: a"].share
    assert labels["Executor outcomes"] == ["ok", "timeout"]
    assert labels["Seconds per step, by phase"] == ["total", "learn"]
    assert len(labels["Loss"]) == MOST_SERIES and charts["Loss"].omitted == 2
    assert charts["Evaluation accuracy"].share and not charts["Reward per role"].share
    assert arrange(rows)[0].title == "Evaluation"


def test_drawing_leaves_colours_to_the_page_and_survives_values_that_are_not_finite() -> None:
    values = (math.nan, math.inf, 0.5, *(0.01 * i for i in range(100)))
    series = Series(label="x", steps=tuple(range(len(values))), values=values, latest="")
    svg = draw(Chart(title="", series=(series,), omitted=0, share=False))
    assert svg.startswith("<svg") and "style" not in svg and "#0000" not in svg
    assert 'class="stroke-1"' in svg and "fill-ink" in svg and ">step</text>" in svg
    assert draw(Chart(title="", series=(series,), omitted=0, share=False)) == svg
    nothing = Series(label="x", steps=(1,), values=(math.nan,), latest="-")
    assert draw(Chart(title="", series=(nothing,), omitted=0, share=True)).startswith("<svg")


def test_running_mean_by_hand() -> None:
    assert running_mean([1.0, 3.0, math.nan, 5.0], 2) == [1.0, 2.0, 3.0, 5.0]
    assert running_mean([1.0, 3.0, math.nan, 5.0], 2, [1, 3]) == [2.0, 5.0]


@pytest.mark.parametrize(
    "name", ["<script>x</script>", "$\\frac{1$", "\x00\x1b", "\ud800", "\u202e", ""]
)
def test_a_picture_of_any_names_is_drawn(name: str, tmp_path: Path) -> None:
    matrix = MatrixPlot(title=name, rows=[name], columns=[name, "b"], values=[[1.0, nan]])
    gain = Estimate(name=name, value=1.0, low=0.5, high=2.0)
    for drawing in (matrix, IntervalPlot(title=name, estimates=[gain], label=name, null=0.0)):
        drawn = inline(drawing)
        assert "<script" not in drawn and "\u202e" not in drawn
        written = save([drawing], tmp_path, "m")
        assert [path.suffix for path in written] == [".svg", ".png", ".pdf"]


def test_a_long_curve_is_drawn_from_its_extremes() -> None:
    values = [float(n % 97) for n in range(100_000)]
    values[50_001], values[70_000], values[3] = 1e6, -1e6, math.nan
    places = downsample(values)
    assert len(places) <= MOST_POINTS + 1 and places == sorted(set(places))
    assert {50_001, 70_000, 99_999} <= set(places) and 3 not in places
    assert downsample(values[:9]) == list(range(9)) and downsample([math.nan] * 9_000) == [8_999]
    steps = tuple(range(100_000))
    curve = Series(label="all", steps=steps, values=tuple(values), latest="1")
    assert len(draw(Chart(title="", series=(curve,), omitted=0, share=False))) < 100_000
