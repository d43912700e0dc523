"""Metrics of the record: curves of `metrics.jsonl` by step, for a paper, and their latest values.

**Definition.** The value of each chosen metric at every step of the record that has it, and its
mean over the steps: the area under the curve by the trapezoidal rule, divided by the number of
steps from the first to the latest value. For an evaluation also the gain, the latest value minus
the first. With `--steps A:B` also the mean of the values that were recorded at these steps, and the
change from the first range to each later one. A derived metric (`--derive`) is computed from
recorded metrics of the same step. `compare metrics --equal METRIC` ends each record at the last
step at which its sum of this metric is at most 1 % above the smallest total of the compared runs.
A curve of 50 points or more is the running mean over 1/25 of its points.

**Source.** The record of training; nothing is played or computed again.

**Estimator.** The recorded values. An outcome, such as a verdict of a role, is on record from the
step on at which it first occurred; it is 0 at the earlier steps at which the role moved. With
`compare`, it is 0 too in a run in which only the outcome is missing. One run has no interval;
`compare` gives the mean over the runs of a set with Student's interval, and curves with a band from
the lowest to the highest run.

**Limits.** A metric of training is about the episodes of one step, so its latest value is noisy; an
evaluation is not. Long curves are thinned to every k-th point.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfplay.errors import ConfigError, nearest
from selfplay.run.declarations import RunMetrics, read_declared
from selfplay.run.directory import Run
from selfplay.run.formatting import counted, words
from selfplay.run.report.charts import running_mean, smoothing
from selfplay.run.report.repeated_metrics import repeated
from selfplay.run.step_range import step_range
from selfplay.study.derived_metrics import DerivedMetric
from selfplay.study.equal_totals import EqualTotal, total
from selfplay.study.measure import DERIVED, EQUAL, ONLY, RANGES, Measure
from selfplay.study.plots import CurvePlot
from selfplay.study.recorded_metrics import outcomes_of, recorded_metrics
from selfplay.study.result import Result
from selfplay.study.stats.bootstrap import Estimate
from selfplay.study.stats.time_series import LARGEST, measurable

MOST_METRICS = 12
"""Largest number of metrics of a study that names none."""
MOST_POINTS = 500
"""Largest number of points of a curve."""


def study(
    run: Path,
    *,
    only: Sequence[str] = (),
    ranges: Sequence[str] = (),
    derived: Sequence[DerivedMetric] = (),
    outcomes: Sequence[str] = (),
    equal: EqualTotal | None = None,
) -> Result:
    """Return the curves of metrics of a run.

    Args:
        run: The run folder.
        only: Names of metrics, or words in them; empty: the derived metrics, and without any the
            chief metrics, see `RunMetrics.order`.
        ranges: Ranges of steps, such as 1:10, over which means are given.
        derived: Metrics that are computed from recorded ones.
        outcomes: Outcomes that could have occurred, besides those on record; see
            `recorded_metrics`.
        equal: Cost at which the record is ended; None: the whole record.
    Raises:
        ConfigError: If the record has no such metric, no step, or no value in a range.
        RunError: If the record is damaged.
    """
    declared = read_declared(run)
    rows = _with_derived(recorded_metrics(run, outcomes=outcomes), derived)
    if not rows:
        raise ConfigError(
            f"{run}: no training step is recorded; `selfplay evaluate {run}` measures a checkpoint"
        )
    if equal is not None:
        rows = equal.ended(rows)
    names = choose(rows, declared, only or [each.name for each in derived])
    columns = {name: _column(rows, name) for name in names}
    known = {name: column for name, column in columns.items() if column}
    spans = _spans(ranges, known)
    evaluated = {name for name in known if name.startswith("evaluation/")}
    for each in derived:
        if all(t.startswith("evaluation/") or t in evaluated for t in each.terms.values()):
            evaluated.add(each.name)
    found = [
        each
        for name, column in known.items()
        for each in (
            *estimates(name, column, evaluated=name in evaluated),
            *means(name, column, spans),
        )
    ]
    return Result(
        measure="metrics",
        title=f"Metrics of {run.resolve().name} by step",
        definition="The recorded values, by step. Curves of 50 points or more are running means "
        "over 1/25 of their points. The estimates are the latest values, the means over the steps "
        "(area under the curve), and for evaluations the gains since the first.",
        estimates=found,
        drawings=[curve(name, column, declared) for name, column in known.items()],
        params={"run": str(run), "steps": max(rows, default=0)},
        notes=[*_left_out(rows, names), *([equal.note()] if equal else [])],
    )


def estimates(name: str, column: Mapping[int, float], *, evaluated: bool) -> list[Estimate]:
    """Return the latest value of a metric and its mean over the steps; for an evaluation also the
    first value and the gain.

    `column` is step to value, all finite. A metric with one value has neither mean nor gain.
    """
    first, last = min(column), max(column)

    def exact(title: str, value: float, at: str) -> Estimate:
        return Estimate(name=title, value=value, direction="exact", notes=at)

    latest = exact(f"{name}, latest", column[last], f"step {last}")
    if first == last:
        return [latest]
    during = f"steps {first} to {last}"
    area = float(np.trapezoid(list(column.values()), list(column)))
    mean = exact(f"{name}, mean", area / (last - first), during)
    if not evaluated:
        return [latest, mean]
    return [
        exact(f"{name}, first", column[first], f"step {first}"),
        latest,
        exact(f"{name}, gain", column[last] - column[first], during),
        mean,
    ]


def means(
    name: str, column: Mapping[int, float], spans: Mapping[str, tuple[int | None, int | None]]
) -> list[Estimate]:
    """Return the mean of a metric in each range of steps in which it has values; for each range
    after the first also the change from the first.

    Args:
        name: The metric.
        column: Step to value, all finite.
        spans: Text of a range to its first and its last step, see `step_range`.
    """
    found: dict[str, Estimate] = {}
    for text, span in spans.items():
        inside = [value for step, value in column.items() if _within(step, span)]
        if inside:
            found[text] = Estimate(
                name=f"{name}, steps {text}",
                value=float(np.mean(inside)),
                direction="exact",
                notes=f"mean of {counted(len(inside), 'value')}",
            )
    base = next(iter(spans), "")
    changes = [
        Estimate(
            name=f"{name}, steps {text} less {base}",
            value=each.value - found[base].value,
            direction="exact",
            notes="of the two means",
        )
        for text, each in found.items()
        if text != base and base in found
    ]
    return [*found.values(), *changes]


def _within(step: int, span: tuple[int | None, int | None]) -> bool:
    first, last = span
    return (first is None or first <= step) and (last is None or step <= last)


def _spans(
    ranges: Sequence[str], columns: Mapping[str, Mapping[int, float]]
) -> dict[str, tuple[int | None, int | None]]:
    """Return the first and the last step of each range; raise ConfigError for a text that is no
    range, and for a range in which no chosen metric has a value."""
    spans = {text: step_range(text) for text in ranges}
    steps = {step for column in columns.values() for step in column}
    for text, span in spans.items():
        if not any(_within(step, span) for step in steps):
            known = f"; they have values at the steps {min(steps)} to {max(steps)}" if steps else ""
            raise ConfigError(f"--steps {text}: no chosen metric has a value there{known}")
    return spans


def choose(
    rows: Mapping[int, Mapping[str, float]], declared: RunMetrics, only: Sequence[str]
) -> list[str]:
    """Return the names of the chosen metrics; raise ConfigError for words in no name."""
    every = list(dict.fromkeys(name for row in rows.values() for name in row))
    if not only:
        chief = sorted(filter(declared.order, every), key=declared.order)
        if not chief:
            raise ConfigError("the record has no chief metric; name some with --only")
        return chief[:MOST_METRICS]
    repeats = repeated({name: _column(rows, name) for name in every})
    found: dict[str, None] = {}
    for text in only:
        containing = [name for name in every if text in name]
        first = [name for name in containing if name not in repeats]
        having = [text] if text in every else first or containing
        if not having:
            raise ConfigError(f"--only {text}: no such metric; {nearest(text, every)}")
        found |= dict.fromkeys(having)
    return list(found)


def curve(name: str, column: Mapping[int, float], declared: RunMetrics) -> CurvePlot:
    """Return the picture of a metric.

    Args:
        name: The metric.
        column: Step to value, all finite.
        declared: Declarations of the run's metrics.
    """
    unit = declared.of(name).unit
    steps = list(column)
    means = dict(
        zip(steps, running_mean(list(column.values()), smoothing(len(steps))), strict=True)
    )
    shown = _thinned(steps)
    percent = unit == "fraction"
    label = words(name.partition("/")[2] or name)
    named = percent or not unit or label.endswith(unit)
    return CurvePlot(
        title=name,
        x=[float(step) for step in shown],
        series={name: [means[step] for step in shown]},
        bands={},
        label=label if named else f"{label}, {unit}",
        percent=percent,
    )


def _with_derived(
    rows: Mapping[int, Mapping[str, float]], derived: Sequence[DerivedMetric]
) -> Mapping[int, Mapping[str, float]]:
    """Return the rows with the values of derived metrics where they have all terms."""
    recorded = {name: None for row in rows.values() for name in row}
    for metric in derived:
        metric.check(recorded)
        recorded[metric.name] = None
        rows = {step: {**row, metric.name: metric.value(row)} for step, row in rows.items()}
    return rows


def _column(rows: Mapping[int, Mapping[str, float]], name: str) -> dict[int, float]:
    """Return the values of a metric by step, in their order, without those that `measurable`
    leaves out."""
    values = {step: measurable(row.get(name, math.nan)) for step, row in rows.items()}
    return {step: value for step, value in values.items() if math.isfinite(value)}


def _left_out(rows: Mapping[int, Mapping[str, float]], names: Sequence[str]) -> list[str]:
    """Return notes on metrics without a finite value, and on values that are too large."""
    found, without = [], []
    for name in names:
        values = [row[name] for row in rows.values() if math.isfinite(row.get(name, math.nan))]
        large = sum(abs(value) > LARGEST for value in values)
        without += [] if values else [name]
        if large:
            found.append(
                f"{name}: {large} of {len(values)} values are beyond {LARGEST:g}: left out"
            )
    return [f"no finite value: {', '.join(without)}", *found] if without else found


def _thinned(steps: Sequence[int]) -> list[int]:
    """Return every k-th step, counted from the last one, so that runs of equal length agree."""
    return list(steps[:: -max(1, math.ceil(len(steps) / MOST_POINTS))])[::-1]


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    Run.open(options.run)
    most: float | None = getattr(options, "most", None)
    if options.equal and most is None:
        raise ConfigError(
            "--equal compares the costs of several runs; use it in `selfplay study compare metrics`"
        )
    return study(
        options.run,
        only=options.only or (),
        ranges=options.steps or (),
        derived=[DerivedMetric.parse(text) for text in options.derive or ()],
        outcomes=getattr(options, "outcomes", ()),
        equal=EqualTotal(metric=options.equal, most=most) if options.equal and most else None,
    )


def shared(runs: Sequence[Path], options: argparse.Namespace) -> Mapping[str, Any]:
    """Return what `compare` gives to the study of each run: outcomes of the others, and with
    --equal the smallest total of its metric."""
    found: dict[str, Any] = {"outcomes": outcomes_of(runs)}
    if options.equal:
        derived = [DerivedMetric.parse(text) for text in options.derive or ()]
        rows = [_with_derived(recorded_metrics(run), derived) for run in runs]
        found["most"] = min(total(each, options.equal) for each in rows)
    return found


MEASURE = Measure(
    name="metrics",
    help="recorded metrics by step: curves for a paper, and the latest values",
    target="run",
    run=from_options,
    options=(ONLY, RANGES, DERIVED, EQUAL),
    shared=shared,
)
"""The measure `metrics` of the command line."""
