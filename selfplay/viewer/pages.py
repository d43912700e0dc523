"""The pages of the viewer, each made from the files of run folders."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from selfplay.charts import MOST_SERIES, Chart, Section, Series, arrange, draw, smoothing
from selfplay.errors import RunError
from selfplay.figures import figure, number, words
from selfplay.pages import render
from selfplay.recorded import Recorded, read_metrics, read_summary
from selfplay.transcripts import show
from selfplay.viewer.buffer import Buffer
from selfplay.viewer.catalogue import Catalogue, Shown
from selfplay.viewer.filter import Filter
from selfplay.viewer.index import PAGE, Index
from selfplay.viewer.standings import standings
from selfplay.viewer.tokens import tokens

PATIENCE = 1.0
"""Seconds that a request spends on indexing; what is left is told, and read at the next."""
MOST_FIGURES = 6
"""Figures of a run that the list of runs shows."""


class Pages:
    """Makes pages; keeps the indexes of the runs that were asked for."""

    def __init__(self, catalogue: Catalogue, cache: Path) -> None:
        self.catalogue, self.cache = catalogue, cache
        self._indexes: dict[Path, Index] = {}
        self._lock = Lock()

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
        sections = arrange(rows)
        chosen = _chosen(sections, section)
        return render(
            "viewer_run.html.jinja",
            title=name,
            run=run,
            steps=max(rows, default=0),
            summary=read_summary(run.folder / "summary.json"),
            sections=[each.title for each in sections],
            section=chosen.title if chosen else "",
            charts=_drawn(chosen.charts if chosen else ()),
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

    # Episodes ----------------------------------------------------------------------------------

    def episodes(self, name: str, asked: Filter, page: int) -> str:
        """A page of the list of episodes."""
        run = self.catalogue.run(name)
        index = self._index(run)
        left = index.update(PATIENCE)
        if left:
            index.update_behind()
        rows, total = index.find(asked, page)
        plain = {key: value for key, value in vars(asked).items() if value not in ("", None, False)}
        pages = -(-total // PAGE)
        return render(
            "viewer_episodes.html.jinja",
            title=f"Episodes of {name}",
            run=run,
            asked=asked,
            rows=rows,
            total=total,
            left=left,
            roles=index.roles(),
            page=page,
            pages=pages,
            links=[(n, urlencode({**plain, "page": n})) for n in _near(page, pages)],
        )

    def episode(self, name: str, step: int, line: int, colour: str) -> str:
        """One episode, turn by turn; with `colour`, token by token."""
        run, record = self._read(name, step, line)
        advantages = _advantages(record)
        turns = [
            {
                "shown": show(turn, advantage, False),
                "tokens": tokens(turn, advantage, run=run.folder, colour=colour) if colour else (),
            }
            for turn, advantage in zip(record.episode.turns, advantages, strict=True)
        ]
        return render(
            "viewer_episode.html.jinja",
            title=f"Episode {line} of step {step}",
            run=run,
            record=record,
            turns=turns,
            agents=list(record.episode.agents()),
            colour=colour,
        )

    def group(self, name: str, step: int, group: str) -> str:
        """The siblings of a group side by side, and what each agent was paid and credited with."""
        run = self.catalogue.run(name)
        index = self._index(run)
        index.update(PATIENCE)
        siblings = [self._read(name, row.step, row.line)[1] for row in index.group(step, group)]
        if not siblings:
            raise RunError(f"no group {group!r} in step {step} of {name}")
        agents = list(dict.fromkeys(a for each in siblings for a in each.episode.agents()))
        return render(
            "viewer_group.html.jinja",
            title=f"Group {group} of step {step}",
            run=run,
            step=step,
            siblings=[
                {
                    "record": record,
                    "turns": [
                        show(turn, advantage, False)
                        for turn, advantage in zip(
                            record.episode.turns, _advantages(record), strict=True
                        )
                    ],
                }
                for record in siblings
            ],
            table=[(agent, *_returns(agent, siblings)) for agent in agents],
        )

    def tasks(self, name: str, kind: str, number_: int | None, page: int) -> str:
        """The task buffer of the newest checkpoint; `number_` asks for one task's lineage."""
        run = self.catalogue.run(name)
        buffer = Buffer(run.folder)
        listed = buffer.of_type(kind)
        pages = -(-len(listed) // PAGE)
        return render(
            "viewer_tasks.html.jinja",
            title=f"Tasks of {name}",
            run=run,
            kinds=buffer.kinds,
            kind=kind,
            total=len(listed),
            entries=listed[page * PAGE : (page + 1) * PAGE],
            lineage=[] if number_ is None else buffer.lineage(number_),
            charts=_drawn(buffer.charts(kind)),
            page=page,
            links=[(n, urlencode({"type": kind, "page": n})) for n in _near(page, pages)],
        )

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

    def _index(self, run: Shown) -> Index:
        with self._lock:  # requests come on several threads
            if run.folder not in self._indexes:
                self._indexes[run.folder] = Index(run.folder, self.cache)
            return self._indexes[run.folder]

    def _read(self, name: str, step: int, line: int) -> tuple[Shown, Recorded]:
        run = self.catalogue.run(name)
        index = self._index(run)
        index.update(PATIENCE)
        return run, index.read(step, line)

    def _line(self, run: Shown) -> dict[str, Any]:
        """What the list says of a run; a broken one is listed with what is wrong."""
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


def _chosen(sections: Sequence[Section], title: str) -> Section | None:
    return next(
        (each for each in sections if each.title == title), sections[0] if sections else None
    )


def _drawn(charts: Sequence[Chart]) -> list[tuple[Chart, Markup]]:
    return [(chart, Markup(draw(chart))) for chart in charts]


def _advantages(record: Recorded) -> list[Any]:
    missing = len(record.episode.turns) - len(record.advantages)
    return [*record.advantages, *[None] * missing][: len(record.episode.turns)]


def _returns(agent: str, siblings: Sequence[Recorded]) -> tuple[list[str], str]:
    """What an agent was paid in each sibling, with its first advantage; and their mean."""
    cells, paid = [], []
    for record in siblings:
        mine = [place for place, turn in enumerate(record.episode.turns) if turn.agent == agent]
        if not mine:
            cells.append("-")
            continue
        paid.append(sum(record.episode.turns[place].reward for place in mine))
        first = _advantages(record)[mine[0]]
        shown = (
            number(sum(first) / max(len(first), 1)) if isinstance(first, list) else number(first)
        )
        cells.append(f"{number(paid[-1])} ({shown})")
    return cells, number(sum(paid) / len(paid)) if paid else "-"


def _near(page: int, pages: int) -> list[int]:
    """Pages worth a link: the first, the last, and those around this one."""
    return sorted({0, *range(max(0, page - 3), min(pages, page + 4)), max(0, pages - 1)})
