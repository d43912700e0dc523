"""The ablation table of a sweep: one row per combination of choices, over all seeds."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from selfplay.errors import RunError, printable
from selfplay.run import sweep
from selfplay.run.declarations import TROUBLES, RunMetrics, read_declared
from selfplay.run.formatting import columns, format_value, words
from selfplay.run.record_reader import Summary, read_metrics, summary_or_damage
from selfplay.run.report.charts import LARGEST, SERIES, bare, svg
from selfplay.run.report.html import render, write_page
from selfplay.run.report.percent_axis import percent_axis
from selfplay.run.run_folder import METRICS, REPORT
from selfplay.types import Metric

SEED = "seed"
"""The swept key that is not a choice: runs that differ only in the seed share a row."""
LAST_STEPS = 10
"""Number of last steps that rewards are averaged over if a run has no evaluation."""


@dataclass(frozen=True, kw_only=True)
class AblationRow:
    """Results of the runs with one combination of choices."""

    choices: Mapping[str, str]
    """Swept keys, except the seed, with their values."""
    runs: int
    """Number of runs that ended."""
    missing: int
    """Number of runs that have not ended, or whose summary cannot be read."""
    values: Mapping[str, tuple[float, ...]]
    """Metric to its final values in the runs that ended, without those that are not finite or
    beyond `charts.LARGEST`."""
    read: Mapping[str, Metric] = field(default_factory=dict)
    """Unit and direction of each metric, as the runs declare them."""
    damaged: tuple[str, ...] = ()
    """A line about each run whose summary cannot be read."""

    def shown(self, metric: str) -> str:
        """Return the mean, with the standard deviation over seeds (n - 1) if there are several."""
        values = self.values.get(metric, ())
        if not values:
            return "-"
        read = self.read.get(metric, Metric())
        middle = format_value(read, mean(values))
        return f"{middle} \u00b1 {format_value(read, stdev(values))}" if len(values) > 1 else middle


def lines(folder: Path) -> list[AblationRow]:
    """Return the rows of a sweep's table.

    Raises RunError if `folder` is not a sweep folder, or no run of the sweep has ended with a
    summary that can be read.
    """
    return _rows(folder, sweep.read(folder))


def _rows(folder: Path, made: sweep.Sweep) -> list[AblationRow]:
    together: dict[tuple[tuple[str, str], ...], list[sweep.Point]] = {}
    for point in made.points:
        key = tuple((k, v) for k, v in point.choices.items() if k != SEED)
        together.setdefault(key, []).append(point)
    found = []
    for key, members in together.items():
        values: dict[str, list[float]] = {}
        read: dict[str, Metric] = {}
        ended, damaged = 0, []
        for point in members:
            summary, unread = summary_or_damage(folder / point.name)
            if unread:
                damaged.append(f"left out a damaged file: {point.name}/{unread}")
            if summary is None:
                continue
            ended += 1
            declared = read_declared(folder / point.name)
            for metric, value in _outcome(folder / point.name, summary, declared).items():
                values.setdefault(metric, []).extend(_known([value]))
                read.setdefault(metric, _read(metric, declared))
        found.append(
            AblationRow(
                choices=dict(key),
                runs=ended,
                missing=len(members) - ended,
                values={metric: tuple(each) for metric, each in values.items()},
                read=read,
                damaged=tuple(damaged),
            )
        )
    if not any(line.runs for line in found):
        if lost := damages(found):
            raise RunError(f"{folder}: no run of this sweep has a summary to read; {lost[0]}")
        raise RunError(f"{folder}: no run of this sweep has ended yet")
    return found


def keys(table: Sequence[AblationRow]) -> list[str]:
    """Return the swept keys of all rows, in the order of their first appearance."""
    return list(dict.fromkeys(key for line in table for key in line.choices))


def damages(table: Sequence[AblationRow]) -> list[str]:
    """Return the lines about runs whose summary cannot be read."""
    return [fault for line in table for fault in line.damaged]


def metrics(table: Sequence[AblationRow]) -> list[str]:
    """Return the names of the columns of metrics, in the order of their first appearance."""
    return list(dict.fromkeys(metric for line in table for metric in line.values))


def readings(table: Sequence[AblationRow]) -> dict[str, Metric]:
    """Return unit and direction of every column, from the first row that has the column."""
    found: dict[str, Metric] = {}
    for line in table:
        found = {**line.read, **found}
    return found


def text(table: Sequence[AblationRow]) -> str:
    """Format the table for a terminal. A row has no text for a key that its runs do not have."""
    swept, named = keys(table), metrics(table)
    rows = [[*swept, "runs", *map(words, named)]]
    for line in table:
        runs = f"{line.runs} of {line.runs + line.missing}" if line.missing else str(line.runs)
        shown = [line.shown(name) for name in named]
        rows.append([*(line.choices.get(key, "") for key in swept), runs, *shown])
    # Another person may have chosen these texts, so characters that a terminal obeys are escaped.
    printed = columns([[printable(cell) for cell in row] for row in rows])
    if "\u00b1" in printed:
        printed += "\n\u00b1: standard deviation over the runs of a row"
    return "\n".join([printed, *map(printable, damages(table))])


def write_ablation(folder: Path) -> Path:
    """Write the sweep's `report.html` and return its path."""
    return write_page(folder / REPORT, render_ablation(folder), root=folder)


def render_ablation(folder: Path) -> str:
    """Return the sweep's page; raise RunError as `lines` does."""
    made = sweep.read(folder)
    table = _rows(folder, made)
    columns, read = metrics(table), readings(table)
    return render(
        "ablation.html.jinja",
        name=folder.resolve().name,
        keys=keys(table),
        columns=columns,
        better={name: metric.better for name, metric in read.items()},
        lines=table,
        damaged=damages(table),
        charts=[
            (name, Markup(_dots(rows, share=read[name].unit == "fraction")))
            for name in columns
            for rows in [[each.values.get(name, ()) for each in table]]
        ],
        seeds=max(line.runs + line.missing for line in table),
        command=shlex.join(["selfplay", "train", "-m", *made.command]),
    )


def _read(metric: str, declared: RunMetrics) -> Metric:
    """Return the unit and the direction of a column's metric."""
    return declared.of(metric if metric.startswith("role/") else f"evaluation/{metric}")


def _outcome(run: Path, summary: Summary, declared: RunMetrics) -> dict[str, float]:
    """Return a run's final metrics.

    These are the metrics of its evaluations after training, the chief metrics of each evaluation
    first; for a run without evaluations, the mean rewards over the last steps.
    """
    found = {
        f"{name}/{metric}": float(value)
        for name, values in summary.evaluations.items()
        for metric, value in sorted(
            (values.get("after") or {}).items(),
            key=lambda each: declared.rank(name, each[0]),
        )
        if value is not None
        and metric not in TROUBLES
        and ("/" not in metric or declared.is_chief(name, metric))
    }
    if found:
        return found
    rows = list(read_metrics(run / METRICS).values())[-LAST_STEPS:]
    names = {n for row in rows for n in row if n.startswith("role/") and n.endswith("/reward")}
    return {
        name: mean(_known(row[name] for row in rows if name in row) or [math.nan])
        for name in sorted(names)
    }


def _known(values: Iterable[float]) -> list[float]:
    """Return the values that can be averaged and drawn: those that are finite and not too large."""
    return [value for value in values if abs(value) <= LARGEST]


def _dots(rows: Sequence[Sequence[float]], *, share: bool) -> str:
    """Draw an `<svg>` element with a dot for every value and a bar at the mean of every row.

    Rows go downwards and have only their numbers, from 1, as in the table.
    """

    def paint(axes: Axes) -> None:
        for number, values in enumerate(rows, 1):
            if values:
                middle = sum(values) / len(values)
                axes.plot([middle] * 2, [number - 0.3, number + 0.3], color=SERIES[0], linewidth=2)
                axes.plot(values, [number] * len(values), "o", color=SERIES[0], alpha=0.6, ms=4)
        bare(axes, grid="x")
        axes.set_ylim(len(rows) + 0.6, 0.4)
        axes.set_yticks(range(1, len(rows) + 1))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        if share:
            percent_axis(axes, "x")

    return svg(3.9, 0.7 + 0.26 * len(rows), paint)
