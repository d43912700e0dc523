"""The pages of runs as a whole, each made from the files of run folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from selfplay.charts import MOST_SERIES, Chart, Series, arrange, draw
from selfplay.curves import smoothing
from selfplay.errors import RunError
from selfplay.figures import figure, words
from selfplay.pages import render
from selfplay.recorded import read_metrics, read_summary
from selfplay.viewer.catalogue import Catalogue, Shown
from selfplay.viewer.games import Games
from selfplay.viewer.paging import PAGE, links
from selfplay.viewer.standings import standings
from selfplay.viewer.tasks import tasks_of

MOST_FIGURES = 6
"""Figures of a run that the list of runs shows."""


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

    def run(self, name: str, section: str) -> str:
        """One run: a section of its curves."""
        run = self.catalogue.run(name)
        rows = read_metrics(run.folder / "metrics.jsonl")
        sections = _sections(rows)
        chosen = section if section in sections else next(iter(sections), "")
        return render(
            "viewer_run.html.jinja",
            title=name,
            run=run,
            steps=max(rows, default=0),
            summary=read_summary(run.folder / "summary.json"),
            sections=list(sections),
            section=chosen,
            charts=_drawn(_charts(rows, sections.get(chosen, ()))),
            window=smoothing(len(rows)),
            live=run.state == "training",
        )

    def compare(self, names: Sequence[str], section: str) -> str:
        """The same curves of several runs, one chart per metric."""
        runs = [self.catalogue.run(name) for name in dict.fromkeys(names)]
        if not 1 < len(runs) <= MOST_SERIES:
            raise RunError(f"choose from 2 to {MOST_SERIES} runs to compare, not {len(runs)}")
        rows = {run.name: read_metrics(run.folder / "metrics.jsonl") for run in runs}
        keys = sorted({key for found in rows.values() for row in found.values() for key in row})
        titles = list(dict.fromkeys(key.partition("/")[0] for key in keys))
        chosen = section if section in titles else (titles[0] if titles else "")
        charts = []
        for key in (key for key in keys if key.partition("/")[0] == chosen):
            (alone,) = (chart for s in arrange({0: {key: 0.0}}) for chart in s.charts)
            curves = tuple(
                Series(
                    label=run,
                    steps=tuple(step for step, row in found.items() if key in row),
                    values=tuple(row[key] for row in found.values() if key in row),
                    latest=figure(key, next(r[key] for r in reversed(found.values()) if key in r)),
                )
                for run, found in rows.items()
                if any(key in row for row in found.values())
            )
            rest = key.partition("/")[2]
            charts.append(
                Chart(title=words(rest or key), series=curves, omitted=0, share=alone.share)
            )
        return render(
            "viewer_compare.html.jinja",
            title="Compared",
            runs=runs,
            sections=titles,
            section=chosen,
            charts=_drawn(charts),
            query=urlencode([("run", run.name) for run in runs]),
            live=any(run.state == "training" for run in runs),
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
        return [chart for section in arrange(rows) for chart in section.charts]

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
        except (RunError, OverflowError) as error:
            return {"run": run, "steps": 0, "problem": str(error), "figures": []}
        latest: dict[str, float] = {}
        for row in rows.values():
            latest |= {key: value for key, value in row.items() if _is_chief(key)}
        figures = [(key.partition("/")[2], figure(key, value)) for key, value in latest.items()]
        return {
            "run": run,
            "steps": max(rows, default=0),
            "problem": "",
            "figures": figures[:MOST_FIGURES],
        }


def _is_chief(key: str) -> bool:
    """Whether the list of runs shows a figure: of a whole evaluation, or a role's pay."""
    section, *rest = key.split("/")
    if section == "evaluation":
        return len(rest) == 2 and rest[1] not in ("failed_episodes", "distinct_created")
    return section == "role" and len(rest) == 2 and rest[1] == "reward"


def _sections(rows: Mapping[int, Mapping[str, float]]) -> dict[str, list[str]]:
    """Title to metrics: without the curves themselves, of which a page draws one section."""
    names = dict.fromkeys(key for row in rows.values() for key in row)
    found: dict[str, list[str]] = {s.title: [] for s in arrange({0: dict.fromkeys(names, 0.0)})}
    for name in names:
        (section,) = arrange({0: {name: 0.0}})
        found[section.title].append(name)
    return found


def _charts(rows: Mapping[int, Mapping[str, float]], names: Sequence[str]) -> list[Chart]:
    wanted = {step: {k: row[k] for k in names if k in row} for step, row in rows.items()}
    return [chart for section in arrange(wanted) for chart in section.charts]


def _drawn(charts: Sequence[Chart]) -> list[tuple[Chart, Markup]]:
    return [(chart, Markup(draw(chart))) for chart in charts]
