"""Tests of charts: the grouping of metrics, and drawings that hold only geometry and text."""

import math
import re
from math import nan
from pathlib import Path
from typing import Any

import pytest

from selfplay.run.declarations import ArenaMetrics, RunMetrics
from selfplay.run.report import html
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
from selfplay.run.report.percent_axis import PercentTicks
from selfplay.run.report.sweep_report import _dots
from selfplay.study.figure_files import save
from selfplay.study.plots import CurvePlot, IntervalPlot, MatrixPlot, inline
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
            "evaluation/held/abduction/accuracy": 0.2,
            "evaluation/one/accuracy": 0.1,
            "evaluation/one/question/accuracy": 0.1,
            "role/a/verdict/correct": 0.5,
            "role/a/verdict/wrong": 0.5,
            "service/executor/timeout": 1,
            "service/executor/ok": 7,
            "episodes/failed": 3,
            "episodes/failed/KeyError": 2,
            "policy/p0/lr": 0.1,
            "policy/p0/mismatch_kl": 0.1,
            "policy/p0/reference_kl": 0.1,
            "seconds/learn": 1,
            "seconds/total": 2,
            "odd/x": math.inf,
            **{f"policy/p{i}/loss": 0.1 for i in range(MOST_SERIES + 2)},
        }
    }
    fraction = ArenaMetrics(metrics={"accuracy": Metric(unit="fraction")})
    declared = RunMetrics(evaluations={"held": fraction, "one": fraction})
    charts = {chart.title: chart for section in arrange(rows, declared) for chart in section.charts}
    labels = {title: [series.label for series in chart.series] for title, chart in charts.items()}
    assert labels["Reward per role"] == ["a", "b"]
    assert labels["Solve rate by task type"] == ["all", "abduction"]
    assert labels["Evaluation accuracy"] == ["held", "one"] and "Accuracy: one" not in labels
    assert labels["Accuracy: held"] == ["abduction"]
    assert labels["Verdict: a"] == ["correct", "wrong"] and charts["Verdict: a"].share
    assert labels["Failed"] == ["all", "KeyError"], (
        "failures and their kinds of errors are in one chart"
    )
    assert {"Learning rate", "Mismatch KL, nats", "Reference KL, nats"} <= charts.keys()
    assert labels["Executor outcomes"] == ["ok", "timeout"]
    assert labels["Seconds per step, by phase"] == ["total", "learn"]
    assert len(labels["Loss"]) == MOST_SERIES and charts["Loss"].omitted == 2
    assert charts["Evaluation accuracy"].share and not charts["Reward per role"].share
    assert arrange(rows)[0].title == "Evaluation"


def test_a_league_chart_has_one_unit_and_unchanged_names() -> None:
    rows = {
        1: {
            "league/rating/base": 25.0,
            "league/rating/base@3": 21.0,
            "league/rating/random": 18.0,
            "league/return/base": 0.5,
            "league/win_rate/base/base@3": 0.6,
            "league/win_rate/base/random": 0.9,
            "league/share/base/snapshots": 0.2,
            "league/share/base/self": 0.8,
            "league/snapshots": 4.0,
            "versus/random/base@3": 1.0,
        }
    }
    declared = RunMetrics()
    charts = [chart for section in arrange(rows) for chart in section.charts]
    curves = {chart.title: [series.label for series in chart.series] for chart in charts}
    assert curves == {
        "Rating": ["base", "base@3", "random"],
        "Return": ["base"],
        "Snapshots": ["all"],
        "Share: base": ["self", "snapshots"],
        "Win rate: base": ["base@3", "random"],
        "base@3": ["random"],
    }
    shown = [chart.title for chart in charts if chart.share]
    assert shown == ["Share: base", "Win rate: base"]
    assert declared.of("league/rating/base@3").unit != declared.of("league/win_rate/a/base@3").unit


def test_drawing_sets_no_colours_and_accepts_values_that_are_not_finite() -> None:
    values = (math.nan, math.inf, 0.5, *(0.01 * i for i in range(100)))
    series = Series(label="x", steps=tuple(range(len(values))), values=values, latest="")
    svg = draw(Chart(title="", series=(series,), omitted=0, share=False))
    assert svg.startswith("<svg") and "style" not in svg and "#0000" not in svg
    assert 'class="stroke-1"' in svg and "fill-ink" in svg and ">step</text>" in svg
    assert draw(Chart(title="", series=(series,), omitted=0, share=False)) == svg
    nothing = Series(label="x", steps=(1,), values=(math.nan,), latest="-")
    assert draw(Chart(title="", series=(nothing,), omitted=0, share=True)).startswith("<svg")


def test_ticks_in_per_cent_have_the_decimals_of_their_step() -> None:
    ticks = PercentTicks().format_ticks
    halves = [-0.05, -0.025, 0.0, 0.025, 0.05]
    assert ticks(halves) == ["-5.0%", "-2.5%", "0.0%", "2.5%", "5.0%"]
    assert ticks([-1e-17, 0.1, 0.2]) == ["0%", "10%", "20%"]
    assert ticks([0.3331, 0.3332]) == ["33.31%", "33.32%"]


def test_the_axis_of_a_fraction_that_is_always_0_begins_at_0() -> None:
    curve = CurvePlot(
        title="", x=[0, 1], series={"a": [0.0, 0.0]}, bands={}, label="", percent=True
    )
    for drawn in (inline(curve), _dots([[0.0, 0.0], [0.0]], share=True)):
        ticks = re.findall(r">(-?[\d.]+)%<", drawn)
        assert [float(tick) for tick in ticks] == [0, 25, 50, 75, 100]
    assert ">-4%<" in _dots([[-0.04, 0.04]], share=True), "a return can be below 0"


def test_a_curve_that_hides_an_equal_one_names_it() -> None:
    def series(label: str, *values: float) -> Series:
        return Series(label=label, steps=(0, 1), values=values, latest="")

    curves = (series("a", 0.5, nan), series("b", 0.5, 0.5), series("c", 0.5, nan))
    chart = Chart(title="t", series=curves, omitted=0, share=True)
    assert [chart.same_as(number) for number in range(3)] == ["", "", "a"]
    empty: dict[str, Any] = {**dict.fromkeys(("runs", "sections", "links", "query"), ())}
    page = html.render(
        "viewer_compare.html.jinja", title="t", live=False, charts=[(chart, "")], **empty
    )
    assert "c (same as a)" in page and page.count("same as") == 1
    plot = CurvePlot(
        title="",
        x=[0, 1],
        series={"a": [0.5, nan], "b": [0.5, nan], "c": [0.5, nan]},
        bands={"a": ([0, nan], [1, nan]), "b": ([0, nan], [1, nan])},
        label="",
    )
    assert plot.legend == ["a", "b (same as a)", "c"], (
        "c has no band, so its drawing differs from that of a"
    )


def test_running_mean_by_hand() -> None:
    assert running_mean([1.0, 3.0, math.nan, 5.0], 2) == [1.0, 2.0, 3.0, 5.0]
    assert running_mean([1.0, 3.0, math.nan, 5.0], 2, [1, 3]) == [2.0, 5.0]


@pytest.mark.parametrize(
    "name", ["<script>x</script>", "$\\frac{1$", "\x00\x1b", "\ud800", "\u202e", ""]
)
def test_a_drawing_accepts_any_name(name: str, tmp_path: Path) -> None:
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
