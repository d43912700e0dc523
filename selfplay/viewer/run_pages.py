"""Pages of whole runs: curves, comparisons, tasks and failed episodes, and the league's standings.

The pages are rendered from the files of the run folders.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from selfplay.errors import RunError
from selfplay.run.declarations import RunMetrics, read_declared
from selfplay.run.formatting import as_of, format_value, words
from selfplay.run.metrics import describe_troubles, of_troubles
from selfplay.run.record_reader import summary_or_damage
from selfplay.run.report.charts import (
    MOST_SERIES,
    Chart,
    Series,
    arrange,
    draw,
    place,
    section_order,
    section_title,
    smoothing,
)
from selfplay.run.report.html import render, visible
from selfplay.run.sessions import Session, read_sessions
from selfplay.viewer import failed_pages
from selfplay.viewer.catalog import ListedRun, RunCatalogue
from selfplay.viewer.episode_filter import PAGE, links
from selfplay.viewer.excerpts import Marked, found_in
from selfplay.viewer.live_progress import render_progress
from selfplay.viewer.metric_columns import ColumnStore, MetricColumns
from selfplay.viewer.run_tabs import tabs_of
from selfplay.viewer.task_pages import TaskEntry, TaskQuery, tasks_of

MOST_SESSIONS = 20
"""Largest number of shown sessions."""
COUNTS = ("episodes/failed", "service/")
"""Beginnings of the names of metrics that `of_troubles` adds up."""
MOST_CHARTS = 40
"""Largest number of charts of a page; each takes about 0.1 s of one core."""


class RunPages:
    """Renders the pages of whole runs."""

    def __init__(self, catalogue: RunCatalogue, columns: ColumnStore) -> None:
        self.catalogue = catalogue
        self._columns = columns

    def stamp(self, run: str | None) -> str:
        """Return a text that changes with the page of `run`, or with the list of runs if None."""
        shown = self.catalogue.runs()
        return "+".join(f"{s.name}.{s.stamp}" for s in shown if run in (None, s.name))

    def error(self, problem: str) -> str:
        """Render the page of an error."""
        return render("viewer_error.html.jinja", title="Not here", problem=problem)

    # Runs --------------------------------------------------------------------------------------

    def run(self, name: str, section: str, page: int = 0) -> str:
        """Render a section of a run's curves; a long section has several pages, from 0."""
        run = self.catalogue.run(name)
        columns, unread = self._columns_of(run)
        sections = _sections(columns.names)
        chosen = section if section in sections else _first(sections, columns)
        rows = columns.rows(sections.get(chosen, ()))
        declared = read_declared(run.folder)
        charts = [chart for s in arrange(rows, declared) for chart in s.charts]
        summary, damage = summary_or_damage(run.folder)
        return render(
            "viewer_run.html.jinja",
            title=name,
            run=run,
            steps=columns.newest,
            problems=[line for line in (unread, columns.problem, damage) if line],
            summary=summary,
            sections=list(sections),
            section=chosen,
            charts=_drawn(_page_of(charts, page)),
            page=page,
            links=links(page, len(charts), {"section": chosen}, size=MOST_CHARTS),
            window=smoothing(len(rows)),
            troubles=describe_troubles(of_troubles(_counts(columns))),
            live=run.state == "training",
            progress=Markup(render_progress(run)),
            tabs=tabs_of(run),
            sessions=_sessions_of(run),
        )

    def _columns_of(self, run: ListedRun) -> tuple[MetricColumns, str]:
        """Return the metrics of a run; if they cannot be read, none and one line about them."""
        try:
            return self._columns.of(run.folder), ""
        except RunError as error:
            return MetricColumns(run.folder), str(error).removeprefix(f"{run.folder}/")

    def compare(self, names: Sequence[str], section: str, page: int = 0) -> str:
        """Render the curves of several runs, one chart per metric; `page` counts from 0."""
        runs = [self.catalogue.run(name) for name in dict.fromkeys(names)]
        if not 1 < len(runs) <= MOST_SERIES:
            raise RunError(f"choose from 2 to {MOST_SERIES} runs to compare, not {len(runs)}")
        columns = {run.name: self._columns.of(run.folder) for run in runs}
        declared = {run.name: read_declared(run.folder) for run in runs}
        keys = sorted({key for found in columns.values() for key in found.names})
        titles = list(dict.fromkeys(key.partition("/")[0] for key in keys))
        chosen = section if section in titles else (titles[0] if titles else "")
        shown = {key for found in columns.values() for key in found.distinct}
        wanted = [key for key in keys if key in shown and key.partition("/")[0] == chosen]
        query = [("run", run.name) for run in runs]
        return render(
            "viewer_compare.html.jinja",
            title="Compared",
            runs=runs,
            sections=titles,
            section=chosen,
            charts=_drawn([_compared(key, columns, declared) for key in _page_of(wanted, page)]),
            page=page,
            links=links(page, len(wanted), [*query, ("section", chosen)], size=MOST_CHARTS),
            query=urlencode(query),
            live=any(run.state == "training" for run in runs),
        )

    def failed(self, name: str) -> str:
        """Render the newest failed episodes of a run, with their errors."""
        run = self.catalogue.run(name)
        return render(
            "viewer_failed.html.jinja",
            title=f"Failed episodes of {name}",
            run=run,
            failures=failed_pages.newest(run.folder),
            most=failed_pages.MOST,
        )

    # State of the newest checkpoint -------------------------------------------------------------

    def tasks(self, name: str, asked: TaskQuery) -> str:
        """Render the tasks of the curriculum."""
        run = self.catalogue.run(name)
        part, parts = asked.choose(tasks_of(run.folder))
        tasks = parts[part]
        listed = tasks.listed(asked.group, asked.words, asked.order)
        return render(
            "viewer_tasks.html.jinja",
            title=f"Tasks of {name}",
            run=run,
            parts=list(parts),
            part=part,
            asked=asked,
            tasks=tasks,
            total=len(listed),
            entries=_found(listed[asked.page * PAGE : (asked.page + 1) * PAGE], asked.words),
            lineage=_found(tasks.ancestors(asked.task), asked.words),
            children=_found(tasks.children(asked.task), asked.words),
            charts=_drawn([*tasks.charts, *self._counted(run, part)]),
            links=links(asked.page, len(listed), {**asked.fields(), "part": part}),
        )

    def tasks_data(self, name: str, asked: TaskQuery) -> dict[str, Any]:
        """Return the list of the same page as plain data."""
        part, parts = asked.choose(tasks_of(self.catalogue.run(name).folder))
        listed = parts[part].listed(asked.group, asked.words, asked.order)
        return {
            "parts": list(parts),
            "part": part,
            "columns": list(parts[part].columns),
            "total": len(listed),
            "rows": [
                entry.to_json() for entry in listed[asked.page * PAGE : (asked.page + 1) * PAGE]
            ],
        }

    def _counted(self, run: ListedRun, part: str) -> list[Chart]:
        """Return the charts of the metrics of the curriculum, or of one part of a mixture."""
        prefix = f"curriculum/{part}/" if part else "curriculum/"
        columns = self._columns.of(run.folder)
        found = columns.rows(name for name in columns.names if name.startswith(prefix))
        rows = {
            step: {f"curriculum/{name.removeprefix(prefix)}": row[name] for name in row}
            for step, row in found.items()
        }
        declared = read_declared(run.folder)
        return [chart for section in arrange(rows, declared) for chart in section.charts]


def _found(entries: Sequence[TaskEntry], words: str) -> list[tuple[TaskEntry, Marked]]:
    """Return tasks with their excerpts around the searched words."""
    return [(entry, found_in(visible(entry.content), words)) for entry in entries]


def _sessions_of(run: ListedRun) -> Sequence[Session]:
    """Return the newest sessions of a run.

    The result is empty if their file is damaged; the list of runs then reports the damage.
    """
    try:
        return read_sessions(run.folder)[-MOST_SESSIONS:]
    except RunError:
        return []


def _sections(names: Iterable[str]) -> dict[str, list[str]]:
    """Group metrics by the title of their section, in reading order."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        found.setdefault(place(name)[0], []).append(name)
    titled: dict[str, list[str]] = {}
    for section in section_order(found):
        titled.setdefault(section_title(section), []).extend(found[section])
    return titled


def _first(sections: Mapping[str, Sequence[str]], columns: MetricColumns) -> str:
    """Return the first section with a curve of two steps or more; without any, the first one."""
    for title, names in sections.items():
        if any(len(columns.curve(name).steps) > 1 for name in names):
            return title
    return next(iter(sections), "")


def _counts(columns: MetricColumns) -> Iterable[dict[str, float]]:
    """Yield the counts of failed episodes and of program runs, which `of_troubles` adds up."""
    for name in columns.names:
        if name.startswith(COUNTS) or name.endswith("/failed_episodes"):
            for value in columns.curve(name).values.tolist():
                yield {name: value}


def _compared(
    key: str, columns: Mapping[str, MetricColumns], declared: Mapping[str, RunMetrics]
) -> Chart:
    """Return the chart of one metric, with a curve for each run that has it."""
    curves, units = [], set()
    for run, found in columns.items():
        curve = found.curve(key)
        if not len(curve.steps):
            continue
        metric = declared[run].of(key)
        units.add(metric.unit)
        steps, values = tuple(curve.steps.tolist()), tuple(curve.values.tolist())
        latest = as_of(format_value(metric, values[-1]), steps[-1], found.newest)
        curves.append(Series(label=run, steps=steps, values=values, latest=latest))
    title = words(key.partition("/")[2] or key)
    return Chart(title=title, series=tuple(curves), omitted=0, share=units == {"fraction"})


def _page_of(listed: Sequence[Any], page: int) -> Sequence[Any]:
    return listed[page * MOST_CHARTS : (page + 1) * MOST_CHARTS]


def _drawn(charts: Sequence[Chart]) -> list[tuple[Chart, Markup]]:
    return [(chart, Markup(draw(chart))) for chart in charts]
