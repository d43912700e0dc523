"""The report: one self-contained HTML page about a run, built from the files of its folder.

The page shows evaluations, collapse alarms, rollbacks, curves and transcripts. It loads nothing
from outside and holds no script; `html` escapes the text of models.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from selfplay.errors import RunError
from selfplay.run.declarations import COUNTED, RunMetrics, read_declared
from selfplay.run.directory import ROLLED_BACK, gaps
from selfplay.run.formatting import change, direction, format_value, words
from selfplay.run.record_reader import DamagedLines, Summary, read_metrics, summary_or_damage
from selfplay.run.report.charts import arrange, draw, smoothing
from selfplay.run.report.html import render, write_page
from selfplay.run.report.repeated_metrics import finite_columns, repeated
from selfplay.run.report.transcripts import choose
from selfplay.run.run_folder import CONFIG, METRICS, REPORT, check_run
from selfplay.run.sessions import ending
from selfplay.run.untrusted import open_regular

PREFIX = "collapse/"
"""Beginning of the names of the metrics of collapse rules."""


def alarms(run: Path, rows: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Return a line for every stretch of steps at which a rule fired, and for every rollback.

    `rows`: step to metrics. Raises RunError if the record of a rollback cannot be read.
    """
    return [*_stretches(rows), *_returns(run / ROLLED_BACK)]


def _stretches(rows: Mapping[int, Mapping[str, float]]) -> list[str]:
    names = sorted({key for row in rows.values() for key in row if key.startswith(PREFIX)})
    found = []
    for name in names:
        if name == f"{PREFIX}returned":
            continue
        stretch: list[int] = []
        for step in [*sorted(rows), None]:
            if step is not None and rows[step].get(name):
                stretch.append(step)
            elif stretch:
                until = f" to {stretch[-1]}" if len(stretch) > 1 else ""
                found.append(f"{name.removeprefix(PREFIX)} fired at step {stretch[0]}{until}")
                stretch = []
    return found


def _returns(folder: Path) -> list[str]:
    found = []
    for place in sorted(folder.glob("[0-9]*"), key=lambda each: each.name.zfill(9)):
        try:
            with open_regular(place / "why.json", root=folder.parent) as file:
                why = json.loads(file.read())
            reasons = "; ".join(map(str, why["alarms"]))
            found.append(f"went back from step {why['from']} to {why['to']}: {reasons}")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunError(f"{place / 'why.json'}: cannot be read ({error!r})") from error
    return found


MOST_CHARTS = 100
"""Largest number of charts of a section in the report; each takes about 0.1 s to draw."""


@dataclass(frozen=True, kw_only=True)
class MetricChange:
    """A row of the evaluation table."""

    metric: str
    """The metric's name, with spaces."""
    before: str
    """Value before training, as text."""
    after: str
    """Value after training, or the latest value, as text."""
    change: str
    """Signed difference, as text."""
    direction: str
    """Direction of the change: "up" (better), "down" (worse) or "same"."""
    share: bool
    """True if the change is in percentage points."""
    whole: bool
    """True for a metric of the whole evaluation, False for a metric of a part of it."""
    chief: bool
    """True for a chief metric of the evaluation; it is also shown above the table."""


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """The table of one evaluation."""

    name: str
    """Name of the evaluation."""
    first: int
    """Step of the values before training."""
    last: int | None
    """Step of the values after training; None if the evaluation ran once."""
    lines: list[MetricChange]
    """Rows of the table, one per metric."""


def write_report(run: Path) -> Path:
    """Write `report.html` into the run folder and return its path.

    Damaged lines of metrics and episodes are left out, and the report names the first of each. A
    damaged summary is left out too, with a line about it.
    Raises RunError, in one line, if `run` is not a run folder or another of its files cannot
    be read.
    """
    check_run(run)
    config_file = run / CONFIG
    config = _read(config_file)
    damaged = DamagedLines(), DamagedLines()
    rows = read_metrics(run / METRICS, damaged=damaged[0])
    summary, unread = summary_or_damage(run)
    declared = read_declared(run)
    choices = choose(run, declared, damaged=damaged[1])
    curves = _with_ends(rows, summary) if summary else rows
    page = render(
        "report.html.jinja",
        summary=summary or Summary(),
        finished=summary is not None,
        ended=summary is not None or bool(unread),
        name=(summary.name if summary else "") or run.resolve().name,
        steps=max([*rows, summary.steps if summary else 0], default=0),
        seconds=(summary.seconds if summary else 0.0)
        or sum(row.get("seconds/total", 0.0) for row in rows.values()),
        ending=ending(run),
        alarms=alarms(run, rows),
        tables=_tables(rows, summary, declared),
        sections=[
            (
                section.title,
                [(chart, Markup(draw(chart))) for chart in section.charts[:MOST_CHARTS]],
                max(len(section.charts) - MOST_CHARTS, 0),
            )
            for section in arrange(curves, declared)
        ],
        window=smoothing(len(rows)),
        choices=choices,
        config=config,
        missing=gaps(rows),
        damaged=[
            *([f"left out a damaged file: {unread}"] if unread else []),
            *(each.text(run) for each in damaged if each.count),
        ],
    )
    return write_page(run / REPORT, page, root=run)


def compare(
    name: str, values: Mapping[str, Mapping[str, float | None] | None], declared: RunMetrics
) -> list[MetricChange]:
    """Return the rows of the table of evaluation `name`.

    The chief metrics are first, in their order; then come metrics of the whole evaluation, the
    counts of every evaluation (`COUNTED`) last; then metrics of parts. If all tasks have one type,
    the metrics of this type are left out, because they repeat those of the whole evaluation.

    Args:
        name: Name of the evaluation.
        values: "before" and "after" to metric to value.
        declared: Declarations of the run's metrics.
    """
    before, after = values.get("before") or {}, values.get("after") or {}

    def order(metric: str) -> tuple[int, bool, bool]:
        return declared.rank(name, metric), "/" in metric, _counted(metric)

    named = [{f"evaluation/{name}/{m}": v for m, v in each.items()} for each in (before, after)]
    repeats = repeated(finite_columns(dict(enumerate(named))))
    lines = []
    for metric in sorted(dict.fromkeys([*before, *after]), key=order):
        if f"evaluation/{name}/{metric}" in repeats:
            continue
        first, last = before.get(metric), after.get(metric)
        read = declared.of(f"evaluation/{name}/{metric}")
        difference = change(read, first, last)
        lines.append(
            MetricChange(
                metric=words(metric),
                before=format_value(read, first),
                after=format_value(read, last),
                change=difference,
                direction=direction(read, difference),
                share=read.unit == "fraction",
                whole="/" not in metric,
                chief=declared.is_chief(name, metric),
            )
        )
    if lines and lines[0].whole and not any(line.chief for line in lines):
        lines[0] = replace(lines[0], chief=True)
    return lines


def _counted(name: str) -> bool:
    """Return True for a metric that every evaluation counts by itself."""
    return name in COUNTED


def _tables(
    rows: Mapping[int, Mapping[str, float]], summary: Summary | None, declared: RunMetrics
) -> list[ReportTable]:
    """Return the tables of the evaluations before and after training.

    Without a summary, the values are those of the first and of the latest evaluation on record.
    """
    if summary and summary.evaluations:
        return [
            ReportTable(
                name=name, first=0, last=summary.steps, lines=compare(name, values, declared)
            )
            for name, values in summary.evaluations.items()
        ]
    found: dict[str, dict[int, dict[str, float | None]]] = {}
    for step, row in rows.items():
        for key, value in row.items():
            prefix, _, rest = key.partition("/")
            name, slash, metric = rest.partition("/")
            if prefix == "evaluation" and slash:
                found.setdefault(name, {}).setdefault(step, {})[metric] = value
    tables = []
    for name, at in found.items():
        first, last = min(at), max(at)
        ends = {"before": at[first], "after": at[last] if last > first else None}
        lines = compare(name, ends, declared)
        tables.append(
            ReportTable(name=name, first=first, last=last if last > first else None, lines=lines)
        )
    return tables


def _with_ends(
    rows: Mapping[int, Mapping[str, float]], summary: Summary
) -> dict[int, Mapping[str, float]]:
    """Return `rows` with the evaluations before and after training at step 0 and the last step."""
    ends = {"before": 0, "after": max([*rows, summary.steps])}
    extended = dict(rows)
    for name, values in summary.evaluations.items():
        for when, step in ends.items():
            known = {k: v for k, v in (values.get(when) or {}).items() if v is not None}
            found = {f"evaluation/{name}/{metric}": value for metric, value in known.items()}
            extended[step] = {**found, **extended.get(step, {})}
    return extended


def _read(path: Path) -> str:
    try:
        with open_regular(path, root=path.parent) as file:
            return file.read().decode("utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: is not UTF-8 text (byte {error.start})") from error
