"""The report: one self-contained HTML page about a run, built from the files of its folder.

The page refers to nothing outside itself and holds no script. What a model wrote is hostile markup:
it is escaped, characters that hide or reorder text are made visible, and the page's own
Content-Security-Policy would stop whatever got past that.

What a run folder tells of its watch: when which rule fired, and what was gone back from.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from selfplay.errors import RunError
from selfplay.run.declarations import RunMetrics, read_declared
from selfplay.run.directory import ROLLED_BACK, spans
from selfplay.run.formatting import change, direction, figure, words
from selfplay.run.records import Summary, read_metrics, read_summary
from selfplay.run.report.charts import arrange, draw, smoothing
from selfplay.run.report.html import render, write_page
from selfplay.run.report.transcripts import choose
from selfplay.run.untrusted import open_regular

PREFIX = "collapse/"


def alarms(run: Path, rows: Mapping[int, Mapping[str, float]]) -> list[str]:
    """A line for every stretch of steps at which a rule fired, and for every return.

    `rows` is step to metrics. Raises RunError for a record that cannot be read.
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
    """One line of the evaluation table."""

    metric: str
    """Its name."""
    before: str
    """The figure before training."""
    after: str
    """The figure after training, or the latest."""
    change: str
    """The signed difference."""
    direction: str
    """"up" (for the better), "down" or "same"."""
    share: bool
    """Whether the change is in percentage points."""
    whole: bool
    """Whether it is about the whole evaluation and not a part of it."""
    chief: bool
    """True for a chief metric of the evaluation; it is also shown above the table."""


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """The table of one evaluation."""

    name: str
    """The evaluation."""
    first: int
    """Step of the values before training."""
    last: int | None
    """Step of the values after training; None if the evaluation ran once."""
    lines: list[MetricChange]
    """Its metrics."""


def write_report(run: Path) -> Path:
    """Write `report.html` into the run folder and return its path.

    Raises RunError, in one line, if `run` is not a run folder or one of its files cannot be read.
    """
    config_file = run / "config.yaml"
    if not config_file.is_file():
        raise RunError(f"{run}: not a run folder (no config.yaml); name one that training made")
    config = _read(config_file)
    rows = read_metrics(run / "metrics.jsonl")
    summary = read_summary(run / "summary.json")
    declared = read_declared(run)
    choices = choose(run, declared)
    curves = _with_ends(rows, summary) if summary else rows
    page = render(
        "report.html.jinja",
        summary=summary or Summary(),
        finished=summary is not None,
        name=(summary.name if summary else "") or run.resolve().name,
        steps=max([*rows, summary.steps if summary else 0], default=0),
        seconds=(summary.seconds if summary else 0.0)
        or sum(row.get("seconds/total", 0.0) for row in rows.values()),
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
        missing=spans([step for step in range(max(rows, default=0)) if step not in rows]),
    )
    return write_page(run / "report.html", page, root=run)


def compare(
    name: str, figures: Mapping[str, Mapping[str, float | None] | None], declared: RunMetrics
) -> list[MetricChange]:
    """The rows of the table of evaluation `name`: the chief metrics first, then metrics of the
    whole evaluation, then metrics of its parts."""
    before, after = figures.get("before") or {}, figures.get("after") or {}

    # In the order in which the evaluation asks for them; what all of them count, and parts, behind.
    def order(metric: str) -> tuple[int, bool, bool]:
        return declared.rank(name, metric), "/" in metric, _counted(metric)

    lines = []
    for metric in sorted(dict.fromkeys([*before, *after]), key=order):
        first, last = before.get(metric), after.get(metric)
        read = declared.of(f"evaluation/{name}/{metric}")
        difference = change(read, first, last)
        lines.append(
            MetricChange(
                metric=words(metric),
                before=figure(read, first),
                after=figure(read, last),
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
    """Whether an evaluation counts it unasked."""
    return name == "failed_episodes" or name.startswith("distinct_")


def _tables(
    rows: Mapping[int, Mapping[str, float]], summary: Summary | None, declared: RunMetrics
) -> list[ReportTable]:
    """The evaluations before and after training; without a summary, the first and the latest in
    the record."""
    if summary and summary.evaluations:
        return [
            ReportTable(
                name=name, first=0, last=summary.steps, lines=compare(name, figures, declared)
            )
            for name, figures in summary.evaluations.items()
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
    """`rows` with the evaluations before and after training, at step 0 and at the last step."""
    ends = {"before": 0, "after": max([*rows, summary.steps])}
    extended = dict(rows)
    for name, figures in summary.evaluations.items():
        for when, step in ends.items():
            known = {k: v for k, v in (figures.get(when) or {}).items() if v is not None}
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
