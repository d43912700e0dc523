"""The page of curves that a browser draws, and its data: thinned columns of the metrics as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from selfplay.errors import RunError
from selfplay.run import declarations
from selfplay.run.declarations import RunMetrics, read_declared
from selfplay.run.formatting import format_value
from selfplay.run.report.charts import downsample, running_mean, smoothing
from selfplay.run.report.html import render, visible
from selfplay.run.run_folder import CONFIG, METRICS, STUDIES
from selfplay.viewer.catalog import ListedRun, RunCatalogue
from selfplay.viewer.metric_columns import ColumnStore, Curve, MetricColumns, stamp_of
from selfplay.viewer.run_configs import RunConfigs
from selfplay.viewer.study_curves import PREFIX, StudyCurves

MOST_RUNS = 32
"""Largest number of runs whose curves a page shows."""
MOST_PINS = 24
"""Largest number of metrics on a page."""
FIRST = 6
"""Number of metrics on a page whose address names none."""
LARGEST_WINDOW = 10_000
"""Largest window of the running mean, in points."""
MOST_MARKS = 400
"""Largest number of marked steps with an evaluation."""
SMOOTHING = (5, 10, 25, 50, 100, 250)
"""Windows that the page offers."""
UNEVEN = ("evaluation/", PREFIX)
"""Beginnings of the names of curves that have no value at most steps."""


@dataclass(frozen=True, kw_only=True)
class CurveQuery:
    """A request for curves. All fields come from the address."""

    runs: tuple[str, ...]
    """Names of the runs."""
    metrics: tuple[str, ...] = ()
    """Metrics; empty: the first ones of the runs."""
    first: int | None = None
    """First step that is shown; None: the first of the run."""
    last: int | None = None
    """Last step that is shown; None: the last of the run."""
    window: int | None = None
    """Window of the running mean in points, 1 for none; None: chosen by the number of points."""
    seeds: bool = False
    """True to show runs that differ only in the seed as their mean and range."""


class CurvePages:
    """Renders the page of curves and its data."""

    def __init__(self, catalogue: RunCatalogue, columns: ColumnStore) -> None:
        self.catalogue = catalogue
        self.configs = RunConfigs()
        self._columns = columns
        self._studies = StudyCurves()
        self._found: dict[str, ListedRun] = {}

    def stamp(self, names: Sequence[str]) -> str:
        """Return a text that changes with the curves of runs, by four calls of `stat` per run."""
        runs = self.runs(names)
        files = (METRICS, CONFIG, declarations.FILE, STUDIES)
        return "+".join(f"{run.name}.{stamp_of(run.folder / f)}" for run in runs for f in files)

    def runs(self, names: Sequence[str]) -> list[ListedRun]:
        """Return the named runs; raise RunError for an unknown one, and for none or too many."""
        wanted = list(dict.fromkeys(names))
        if not 1 <= len(wanted) <= MOST_RUNS:
            raise RunError(f"choose from 1 to {MOST_RUNS} runs, not {len(wanted)}")
        return [self._run(name) for name in wanted]

    def _run(self, name: str) -> ListedRun:
        """Return a run. The folders are searched only if the run is not where it was."""
        found = self._found.get(name)
        if found is None or stamp_of(found.folder / CONFIG) == "none":
            found = self._found[name] = self.catalogue.run(name)
        return found

    def page(self, asked: CurveQuery, *, find: str, log: bool) -> str:
        """Render the page, without data."""
        runs = self.runs(asked.runs)
        query = urlencode([("run", run.name) for run in runs])
        static = f"/run/{runs[0].name}" if len(runs) == 1 else f"/compare?{query}"
        return render(
            "viewer_curves.html.jinja",
            styles=("uplot/uPlot.min.css",),
            title=f"Curves of {runs[0].name}" if len(runs) == 1 else "Curves",
            runs=runs,
            query=Markup(query),
            static=static,
            asked=asked,
            find=find,
            log=log,
            windows=SMOOTHING,
        )

    def names(self, names: Sequence[str]) -> dict[str, Any]:
        """Return {"metrics": [[name, name as pages show it], ...]} with all metrics of runs."""
        found = {
            name
            for run in self.runs(names)
            for name in self._known(run, self._columns.of(run.folder))
        }
        return {"metrics": [[name, visible(name)] for name in sorted(found)]}

    def data(self, asked: CurveQuery) -> dict[str, Any]:
        """Return the curves of a request as JSON data.

        "runs" has an entry per run, "known" is the number of metrics, and "charts" has an entry
        per metric. In a chart, "evaluated" has the steps at which its runs were evaluated, and
        "studied" has the steps whose checkpoints a study measured. The "number" of a series is the
        index of its run or group in the request, from 0, which is the same in all charts.
        """
        runs = self.runs(asked.runs)
        columns = {run.name: self._columns.of(run.folder) for run in runs}
        declared = {run.name: read_declared(run.folder) for run in runs}
        known = sorted({name for run in runs for name in self._known(run, columns[run.name])})
        metrics = asked.metrics or _first(known, declared[runs[0].name])
        groups = self._groups(runs) if asked.seeds else [[run] for run in runs]
        charts = [
            self._chart(metric, groups, columns, declared, asked) for metric in metrics[:MOST_PINS]
        ]
        return {
            "runs": [_line(run, columns[run.name]) for run in runs],
            "known": len(known),
            "charts": charts,
        }

    def _known(self, run: ListedRun, columns: MetricColumns) -> list[str]:
        """Return the names of the curves of a run (see `MetricColumns.distinct`)."""
        return [*columns.distinct, *self._studies.of(run.folder)]

    def _curve(self, run: ListedRun, columns: MetricColumns, metric: str) -> Curve:
        """Return the curve of a metric, or of a study."""
        studied = self._studies.of(run.folder).get(metric)
        return columns.curve(metric) if studied is None else studied

    def _groups(self, runs: Sequence[ListedRun]) -> list[list[ListedRun]]:
        """Group the runs that differ only in their seed."""
        groups: dict[str, list[ListedRun]] = {}
        for run in runs:
            groups.setdefault(self.configs.group(run.folder), []).append(run)
        return list(groups.values())

    def _chart(
        self,
        metric: str,
        groups: Sequence[Sequence[ListedRun]],
        columns: Mapping[str, MetricColumns],
        declared: Mapping[str, RunMetrics],
        asked: CurveQuery,
    ) -> dict[str, Any]:
        series, units, drawn = [], set(), list[ListedRun]()
        for number, group in enumerate(groups):
            curves = [self._curve(run, columns[run.name], metric) for run in group]
            present = [curve for curve in curves if len(curve.steps)]
            if not present:
                continue
            drawn += [run for run, curve in zip(group, curves, strict=True) if len(curve.steps)]
            meaning = declared[group[0].name].of(metric)
            units.add(meaning.unit)
            label = visible(group[0].name) + (f" and {len(group) - 1} more" if group[1:] else "")
            make = _pooled if group[1:] else _single
            made = make(present, metric, asked)
            latest = format_value(meaning, made.pop("latest"))
            if (last := made.pop("last")) < len(present):
                latest += f" ({last} of {len(present)} seeds)"
            named = {"label": label, "number": number, "seeds": len(present), "latest": latest}
            series.append({**named, **made})
        (unit,) = units if len(units) == 1 else ("",)
        return {
            "metric": metric,
            "title": visible(metric),
            "unit": unit,
            "points": metric.startswith(UNEVEN),
            "evaluated": _thinned(s for run in drawn for s in _evaluated(columns[run.name])),
            "studied": _thinned(s for run in drawn for s in self._studies.steps(run.folder)),
            "series": series,
        }


def _line(run: ListedRun, columns: MetricColumns) -> dict[str, Any]:
    shown = visible(run.name)
    return {"name": shown, "state": run.state, "steps": columns.newest, "problem": columns.problem}


def _first(known: Sequence[str], declared: RunMetrics) -> list[str]:
    """Return the metrics of a page that names none: evaluations, then rewards, then losses."""

    def rank(name: str) -> tuple[int, str]:
        section, _, rest = name.partition("/")
        evaluation, _, path = rest.partition("/")
        if section == "evaluation" and declared.is_chief(evaluation, path):
            return 0, name
        tests = (
            section == "role" and rest.endswith("/reward") and rest.count("/") == 1,
            section == "evaluation" and rest.count("/") == 1,
            section == "policy" and rest.endswith("/loss"),
            section in ("role", "policy", "arena"),
            f"{section}/" != PREFIX,
        )
        return next((n for n, test in enumerate(tests, 1) if test), len(tests) + 1), name

    return sorted(known, key=rank)[:FIRST]


def _evaluated(columns: MetricColumns) -> set[int]:
    """Return the steps at which a run was evaluated."""
    first: dict[str, str] = {}  # one metric of each evaluation has all of its steps
    for name in columns.names:
        if name.startswith("evaluation/"):
            first.setdefault(name.split("/")[1], name)
    return {step for name in first.values() for step in columns.curve(name).steps.tolist()}


def _thinned(steps: Iterable[int]) -> list[int]:
    """Return the different steps in order, evenly thinned to `MOST_MARKS`."""
    marks = sorted(set(steps))
    return marks[:: -(-len(marks) // MOST_MARKS) or 1]


def _window(metric: str, asked: CurveQuery, points: int) -> int:
    """Return the window of the running mean; curves without a value at most steps have none."""
    if metric.startswith(UNEVEN):
        return 1
    return smoothing(points) if asked.window is None else min(asked.window, LARGEST_WINDOW)


def _shown(steps: NDArray[np.int64], values: NDArray[np.float64], asked: CurveQuery) -> list[int]:
    """Return the indices of the points to send: those in the range and one on either side."""
    first = 0 if asked.first is None else max(0, int(np.searchsorted(steps, asked.first)) - 1)
    last = (
        len(steps) if asked.last is None else int(np.searchsorted(steps, asked.last, "right")) + 1
    )
    return [first + index for index in downsample(values[first:last])]


def _single(curves: Sequence[Curve], metric: str, asked: CurveQuery) -> dict[str, Any]:
    """Return the points of one run's curve: steps, values and, if smoothed, means."""
    (curve,) = curves
    steps, values = curve.steps, curve.values
    chosen = _shown(steps, values, asked)
    window = _window(metric, asked, len(values))
    made: dict[str, Any] = {"steps": steps[chosen].tolist(), "values": values[chosen].tolist()}
    if window > 1:
        made |= {"means": running_mean(values, window, chosen), "window": window}
    return {**made, "latest": float(values[-1]), "last": 1}


def _pooled(curves: Sequence[Curve], metric: str, asked: CurveQuery) -> dict[str, Any]:
    """Return the mean over the seeds that have a step, their range and their number.

    "last" is the number of seeds at the last step. Values that are not finite are left out.
    """
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    table = np.full((len(curves), len(steps)), np.nan)
    for row, curve in zip(table, curves, strict=True):
        row[np.searchsorted(steps, curve.steps)] = curve.values
    finite = np.isfinite(table)
    counts = finite.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = np.where(finite, table, 0.0).sum(axis=0) / counts
    low = np.where(finite, table, np.inf).min(axis=0)
    high = np.where(finite, table, -np.inf).max(axis=0)
    chosen = _shown(steps, mean, asked)
    window = _window(metric, asked, len(steps))
    parts = {"values": mean, "low": low, "high": high}
    made = {
        name: running_mean(part, window, chosen) if window > 1 else part[chosen].tolist()
        for name, part in parts.items()
    }
    ends = {"latest": float(mean[-1]), "last": int(counts[-1]), "window": window}
    return {"steps": steps[chosen].tolist(), **made, "counts": counts[chosen].tolist(), **ends}
