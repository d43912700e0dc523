"""The pages of runs as a whole, each made from the files of run folders."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from selfplay.charts import (
    MOST_SERIES,
    Chart,
    Series,
    arrange,
    draw,
    place,
    section_order,
    section_title,
)
from selfplay.curves import smoothing
from selfplay.declared import Declared, read_declared
from selfplay.errors import RunError
from selfplay.figures import as_of, figure, words
from selfplay.metrics import of_troubles, told
from selfplay.pages import render
from selfplay.recorded import read_metrics, read_summary
from selfplay.viewer import failed
from selfplay.viewer.catalogue import Catalogue, Shown
from selfplay.viewer.games import Games
from selfplay.viewer.paging import PAGE, links
from selfplay.viewer.standings import standings
from selfplay.viewer.tasks import tasks_of

MOST_FIGURES = 6
"""Figures of a run that the list of runs shows."""
MOST_CHARTS = 40
"""Largest number of charts of a page; each takes about 0.1 s of one core."""


class Pages:
    """Makes the pages of runs as a whole."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._lines: dict[Path, tuple[str, dict[str, Any]]] = {}

    def stamp(self, run: str | None) -> str:
        """Changes when a live page would: of one run, or of all."""
        shown = self.catalogue.runs()
        return "+".join(f"{s.name}.{s.stamp}" for s in shown if run in (None, s.name))

    def error(self, problem: str) -> str:
        """The page that says what cannot be shown."""
        return render("viewer_error.html.jinja", title="Not here", problem=problem)

    # Runs --------------------------------------------------------------------------------------

    def runs(self) -> str:
        """All runs, with where they stand."""
        shown = [self._line(run) for run in self.catalogue.runs()]
        return render("viewer_runs.html.jinja", title="Runs", runs=shown)

    def run(self, name: str, section: str, page: int = 0) -> str:
        """One run: a section of its curves, or a page (from 0) of a section of very many."""
        run = self.catalogue.run(name)
        rows = read_metrics(run.folder / "metrics.jsonl")
        sections = _sections(key for row in rows.values() for key in row)
        chosen = section if section in sections else next(iter(sections), "")
        names = sections.get(chosen, ())
        wanted = {step: {k: row[k] for k in names if k in row} for step, row in rows.items()}
        declared = read_declared(run.folder)
        charts = [chart for s in arrange(wanted, declared) for chart in s.charts]
        return render(
            "viewer_run.html.jinja",
            title=name,
            run=run,
            steps=max(rows, default=0),
            summary=read_summary(run.folder / "summary.json"),
            sections=list(sections),
            section=chosen,
            charts=_drawn(_page_of(charts, page)),
            page=page,
            links=links(page, len(charts), {"section": chosen}, size=MOST_CHARTS),
            window=smoothing(len(rows)),
            troubles=told(of_troubles(rows.values())),
            live=run.state == "training",
        )

    def compare(self, names: Sequence[str], section: str, page: int = 0) -> str:
        """The same curves of several runs, one chart per metric; a page (from 0) of many."""
        runs = [self.catalogue.run(name) for name in dict.fromkeys(names)]
        if not 1 < len(runs) <= MOST_SERIES:
            raise RunError(f"choose from 2 to {MOST_SERIES} runs to compare, not {len(runs)}")
        rows = {run.name: read_metrics(run.folder / "metrics.jsonl") for run in runs}
        declared = {run.name: read_declared(run.folder) for run in runs}
        keys = sorted({key for found in rows.values() for row in found.values() for key in row})
        titles = list(dict.fromkeys(key.partition("/")[0] for key in keys))
        chosen = section if section in titles else (titles[0] if titles else "")
        mine = [key for key in keys if key.partition("/")[0] == chosen]
        query = [("run", run.name) for run in runs]
        return render(
            "viewer_compare.html.jinja",
            title="Compared",
            runs=runs,
            sections=titles,
            section=chosen,
            charts=_drawn([_compared(key, rows, declared) for key in _page_of(mine, page)]),
            page=page,
            links=links(page, len(mine), [*query, ("section", chosen)], size=MOST_CHARTS),
            query=urlencode(query),
            live=any(run.state == "training" for run in runs),
        )

    def failed(self, name: str) -> str:
        """The newest failed episodes of a run, with their errors."""
        run = self.catalogue.run(name)
        return render(
            "viewer_failed.html.jinja",
            title=f"Failed episodes of {name}",
            run=run,
            failures=failed.newest(run.folder),
            most=failed.MOST,
        )

    # What its newest checkpoint keeps -----------------------------------------------------------

    def tasks(self, name: str, part: str, group: str, key: str, page: int) -> str:
        """The tasks that the curriculum keeps; `key` asks for one task's lineage.

        `part` is of a mixture, `group` a type of task or a state; all where they are empty.
        """
        run = self.catalogue.run(name)
        parts = tasks_of(run.folder)
        part = part if part in parts else next(iter(parts))
        tasks = parts[part]
        listed = tasks.listed(group)
        return render(
            "viewer_tasks.html.jinja",
            title=f"Tasks of {name}",
            run=run,
            parts=list(parts),
            part=part,
            tasks=tasks,
            group=group,
            total=len(listed),
            entries=listed[page * PAGE : (page + 1) * PAGE],
            lineage=tasks.ancestors(key),
            children=tasks.children(key),
            charts=_drawn([*tasks.charts, *self._counted(run, part)]),
            page=page,
            links=links(page, len(listed), {"part": part, "group": group}),
        )

    def _counted(self, run: Shown, part: str) -> list[Chart]:
        """What the curriculum counted, step by step."""
        prefix = f"curriculum/{part}/" if part else "curriculum/"
        rows = {
            step: {
                f"curriculum/{k.removeprefix(prefix)}": row[k] for k in row if k.startswith(prefix)
            }
            for step, row in read_metrics(run.folder / "metrics.jsonl").items()
        }
        declared = read_declared(run.folder)
        return [chart for section in arrange(rows, declared) for chart in section.charts]

    def league(self, name: str) -> str:
        """The league of the newest checkpoint: ratings, and who beats whom."""
        run = self.catalogue.run(name)
        return render(
            "viewer_league.html.jinja",
            title=f"League of {name}",
            run=run,
            lines=standings(run.folder),
        )

    # Parts -------------------------------------------------------------------------------------

    def _line(self, run: Shown) -> dict[str, Any]:
        """What the list says of a run; read again only where there is something new."""
        stamp = f"{run.name}.{run.stamp}"
        if self._lines.get(run.folder, ("",))[0] != stamp:
            self._lines[run.folder] = (stamp, self._read_line(run))
        return self._lines[run.folder][1]

    @staticmethod
    def _read_line(run: Shown) -> dict[str, Any]:
        """A broken run is listed with what is wrong."""
        if run.state == "games":
            count = len(Games(run.games).names())
            figures = [("games of a person", f"{count:,}")]
            return {"run": run, "steps": 0, "problem": "", "figures": figures}
        try:
            rows = read_metrics(run.folder / "metrics.jsonl")
            declared = read_declared(run.folder)
        except RunError as error:
            return {"run": run, "steps": 0, "problem": str(error), "figures": []}
        latest: dict[str, tuple[int, float]] = {}
        for step, row in rows.items():
            latest |= {k: (step, value) for k, value in row.items() if _rank(k, declared)}
        newest = max(rows, default=0)
        chosen = sorted(latest, key=lambda key: _rank(key, declared))[:MOST_FIGURES]
        return {
            "run": run,
            "steps": newest,
            "problem": "",
            "figures": [
                (
                    key.partition("/")[2],
                    as_of(figure(declared.of(key), latest[key][1]), latest[key][0], newest),
                )
                for key in chosen
            ],
        }


def _rank(key: str, declared: Declared) -> int:
    """The place of a metric in the list of runs, from 1; 0 if it is not shown.

    First the chief metrics of evaluations, then the roles' pay, then other metrics of whole
    evaluations.
    """
    section, *rest = key.split("/")
    if section == "role":
        return 2 if len(rest) == 2 and rest[1] == "reward" else 0
    if section != "evaluation" or len(rest) < 2:
        return 0
    if declared.is_chief(rest[0], "/".join(rest[1:])):
        return 1
    return 3 if len(rest) == 2 and rest[1] not in ("failed_episodes", "distinct_created") else 0


def _sections(names: Iterable[str]) -> dict[str, list[str]]:
    """Title to metrics, in reading order."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        found.setdefault(place(name)[0], []).append(name)
    titled: dict[str, list[str]] = {}
    for section in section_order(found):
        titled.setdefault(section_title(section), []).extend(found[section])
    return titled


def _compared(
    key: str,
    rows: Mapping[str, Mapping[int, Mapping[str, float]]],
    declared: Mapping[str, Declared],
) -> Chart:
    """One metric of several runs: a curve for each run that has it, with the run's declaration."""
    curves, units = [], set()
    for run, found in rows.items():
        points = [(step, row[key]) for step, row in found.items() if key in row]
        if not points:
            continue
        metric = declared[run].of(key)
        units.add(metric.unit)
        latest = as_of(figure(metric, points[-1][1]), points[-1][0], max(found))
        steps, values = zip(*points, strict=True)
        curves.append(Series(label=run, steps=steps, values=values, latest=latest))
    title = words(key.partition("/")[2] or key)
    return Chart(title=title, series=tuple(curves), omitted=0, share=units == {"fraction"})


def _page_of(listed: Sequence[Any], page: int) -> Sequence[Any]:
    return listed[page * MOST_CHARTS : (page + 1) * MOST_CHARTS]


def _drawn(charts: Sequence[Chart]) -> list[tuple[Chart, Markup]]:
    return [(chart, Markup(draw(chart))) for chart in charts]
