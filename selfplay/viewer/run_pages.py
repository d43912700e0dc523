"""The pages of runs as a whole, each made from the files of run folders.

A league's standings as the newest checkpoint has them: ratings, and who beats whom.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlencode

from markupsafe import Markup
from pydantic import Field, TypeAdapter, ValidationError

from selfplay.errors import RunError
from selfplay.run.declarations import RunMetrics, read_declared
from selfplay.run.formatting import as_of, figure, words
from selfplay.run.metrics import of_troubles, told
from selfplay.run.records import read_metrics, read_summary
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
from selfplay.run.report.html import render
from selfplay.viewer import failed_pages
from selfplay.viewer.catalog import ListedRun, RunCatalogue, newest_state
from selfplay.viewer.index import PAGE, links
from selfplay.viewer.saved_games import SavedGames
from selfplay.viewer.task_pages import tasks_of

_Count = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Whole = Annotated[int, Field(ge=0, lt=2**63)]
_Played: TypeAlias = tuple[str, str, str, _Whole, _Whole]
"""Player, opponent, the player's seat, games, step of the latest."""


@dataclass(frozen=True)
class _Ratings:
    ratings: Mapping[str, float | list[float]]


@dataclass(frozen=True)
class _Payoff:
    counts: list[tuple[str, str, _Count, _Count, _Count]]


@dataclass(frozen=True)
class _League:
    """The part of a league's state that the page shows."""

    ratings: _Ratings
    payoff: _Payoff
    played: list[_Played] = field(default_factory=list)
    seats: list[str] = field(default_factory=list)


_LEAGUE: TypeAdapter[_League] = TypeAdapter(_League)


@dataclass(frozen=True, kw_only=True)
class StandingsCell:
    """What one came to against another."""

    rate: float
    """Fraction of games won, a draw being half a win; older games count less."""
    games: int | None
    """Games in all; None in a run that did not record them."""
    counted: float
    """Games that the rate counts, the older ones less."""
    seats: tuple[str, ...]
    """Seats of the row's player in these games."""
    everywhere: bool
    """True if the games were played from every seat, so that the rate compares the policies."""
    age: int | None
    """Steps since the latest of the games; None in a run that did not record it."""

    @property
    def shade(self) -> str:
        """CSS class: beaten-4 (lost nearly all) to beats-4 (won nearly all), or even. Empty if
        games from some seat are missing, because the rate may then be due to the seat."""
        if not self.everywhere:
            return ""
        strength = round(8 * self.rate) - 4
        return (
            "even" if not strength else f"{'beats' if strength > 0 else 'beaten'}-{abs(strength)}"
        )


@dataclass(frozen=True, kw_only=True)
class StandingsRow:
    """One of the league."""

    name: str
    """A player, `player@updates` for a snapshot of one, or an anchor."""
    rating: float
    """The mean of its rating."""
    cells: list[StandingsCell | None]
    """Against everyone in the order of the lines; None where they have not met."""


def standings(run: Path) -> list[StandingsRow]:
    """Return all players of a run's league, the best rated first.

    Raises RunError, in one line, if the run has no league or its record is damaged.
    """
    state = newest_state(run)
    league = state.get("league")
    if not isinstance(league, dict) or not league.get("ratings"):
        raise RunError(f"{run.name} was trained without a league")
    try:
        known = _LEAGUE.validate_python(league)
        ratings = {name: _mean(each) for name, each in known.ratings.ratings.items()}
    except (ValidationError, IndexError, OverflowError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else repr(error)
        raise RunError(f"the league of {run.name} is damaged ({reason[:200]})") from error
    counts = {(home, away): results for home, away, *results in known.payoff.counts}
    meetings = _Meetings(played=known.played, seats=known.seats, now=_step(state))
    names = sorted(ratings, key=lambda name: (-ratings[name], name))
    return [
        StandingsRow(
            name=name,
            rating=ratings[name],
            cells=[meetings.cell(name, other, counts.get((name, other))) for other in names],
        )
        for name in names
    ]


def _mean(rating: float | list[float]) -> float:
    """The mean of a rating; one that is not a number comes last."""
    mean = rating[0] if isinstance(rating, list) else rating
    return mean if math.isfinite(mean) else -math.inf


def _step(state: Mapping[str, Any]) -> int:
    step = state.get("step")
    return step if isinstance(step, int) and 0 <= step < 2**63 else 0


@dataclass(frozen=True, kw_only=True)
class _Meetings:
    """Games of a league: their players, their seats and their steps."""

    played: Sequence[_Played]
    seats: Sequence[str]
    now: int

    def cell(self, name: str, other: str, counts: Sequence[float] | None) -> StandingsCell | None:
        """Return the result of `name` against `other`; `counts` are wins, draws and losses."""
        if not counts or not sum(counts):
            return None
        own = [each for each in self.played if each[:2] == (name, other)]
        theirs = [each for each in self.played if each[:2] == (other, name)]
        sat = {seat for _, _, seat, _, _ in own}
        # The other player chose these games and sat in `taken`: `name` had all other seats.
        sat |= {seat for _, _, taken, _, _ in theirs for seat in self.seats if seat != taken}
        games = [*own, *theirs]
        wins, draws, _ = counts
        return StandingsCell(
            rate=(wins + 0.5 * draws) / sum(counts),
            games=sum(each[3] for each in games) if games else None,
            counted=sum(counts),
            seats=tuple(seat for seat in self.seats if seat in sat),
            everywhere=bool(sat) and sat >= set(self.seats),
            age=max(self.now - max(each[4] for each in games), 0) if games else None,
        )


MOST_FIGURES = 6
"""Figures of a run that the list of runs shows."""
MOST_CHARTS = 40
"""Largest number of charts of a page; each takes about 0.1 s of one core."""


class RunPages:
    """Makes the pages of runs as a whole."""

    def __init__(self, catalogue: RunCatalogue) -> None:
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
            failures=failed_pages.newest(run.folder),
            most=failed_pages.MOST,
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

    def _counted(self, run: ListedRun, part: str) -> list[Chart]:
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

    def _line(self, run: ListedRun) -> dict[str, Any]:
        """What the list says of a run; read again only where there is something new."""
        stamp = f"{run.name}.{run.stamp}"
        if self._lines.get(run.folder, ("",))[0] != stamp:
            self._lines[run.folder] = (stamp, self._read_line(run))
        return self._lines[run.folder][1]

    @staticmethod
    def _read_line(run: ListedRun) -> dict[str, Any]:
        """A broken run is listed with what is wrong."""
        if run.state == "games":
            count = len(SavedGames(run.games).names())
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


def _rank(key: str, declared: RunMetrics) -> int:
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
    declared: Mapping[str, RunMetrics],
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
