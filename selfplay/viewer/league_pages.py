"""Pages of a league: ratings over the steps, the payoff matrix at any step, and the pairs.

The newest checkpoint has the games of each pair with seats and ages; `metrics.jsonl` has ratings
and win rates at each step.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from markupsafe import Markup
from pydantic import Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.routing import Route

from selfplay.errors import RunError
from selfplay.run.formatting import number
from selfplay.run.record_reader import DamagedLines, read_metrics
from selfplay.run.report.charts import MOST_SERIES, Chart, Series, draw
from selfplay.run.report.html import render
from selfplay.run.run_folder import CHECKPOINTS, METRICS
from selfplay.viewer.catalog import RunCatalogue, newest_state
from selfplay.viewer.requests import Handler, as_data, as_json, number_of, run_of

_Count = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Whole = Annotated[int, Field(ge=0, lt=2**63)]
_Played: TypeAlias = tuple[str, str, str, _Whole, _Whole]
"""Player, opponent, the player's seat, number of games, step of the latest game."""


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


def shade(rate: float) -> str:
    """Return the CSS class of a rate: beaten-4 (lost nearly all) to beats-4 (won nearly all)."""
    strength = round(8 * rate) - 4
    return "even" if not strength else f"{'beats' if strength > 0 else 'beaten'}-{abs(strength)}"


@dataclass(frozen=True, kw_only=True)
class StandingsCell:
    """Result of one player against another."""

    rate: float
    """Fraction of games won; a draw counts as half a win, and older games count less."""
    games: int | None
    """Number of games; None in a run that did not record it."""
    counted: float
    """Sum of the games' weights in the rate, which are smaller for older games."""
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
        return shade(self.rate) if self.everywhere else ""


@dataclass(frozen=True, kw_only=True)
class StandingsRow:
    """A row of the league's table."""

    name: str
    """A player, `player@updates` for a snapshot of one, or an anchor."""
    rating: float
    """Mean of the rating."""
    cells: list[StandingsCell | None]
    """Results against the players of all rows, in this order; None without games."""


def standings(run: Path) -> list[StandingsRow]:
    """Return the players of a run's league, the highest rating first.

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
    """Return the mean of a rating; negative infinity if it is not a finite number."""
    mean = rating[0] if isinstance(rating, list) else rating
    return mean if math.isfinite(mean) else -math.inf


def _step(state: Mapping[str, Any]) -> int:
    step = state.get("step")
    return step if isinstance(step, int) and 0 <= step < 2**63 else 0


@dataclass(frozen=True, kw_only=True)
class _Meetings:
    """Games of a league: players, seats and steps."""

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
        # In the other player's own games this player had the seat `taken`, and `name` all others.
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


RATING, WIN_RATE = "league/rating/", "league/win_rate/"
"""Beginnings of the metrics that a league writes at each step."""
MOST_STEPS = 60
"""Largest number of steps of the slider, evenly spaced."""
MOST_PLAYERS = 40
"""Largest number of rows and of columns of a matrix."""
PAIR_COLUMNS = ("player", "opponent", "games", "rate", "age")
"""Columns that the table of pairs is sorted by."""


@dataclass(frozen=True, kw_only=True)
class PayoffMatrix:
    """Win rates of the players against their opponents at one step."""

    step: int
    """The training step."""
    players: list[str]
    """Names of the rows: players that learn."""
    opponents: list[str]
    """Names of the columns."""
    rates: list[list[float | None]]
    """[players, opponents] fraction of games won, a draw as half a win; None without games."""

    def shades(self) -> list[list[str]]:
        """Return the CSS class of each cell."""
        return [["" if rate is None else shade(rate) for rate in row] for row in self.rates]


@dataclass(frozen=True, kw_only=True)
class LeagueHistory:
    """Ratings and win rates of a run, from its metrics."""

    ratings: dict[str, list[tuple[int, float]]]
    """Player, snapshot or anchor to (step, rating)."""
    matrices: list[PayoffMatrix]
    """Matrices by step, at most `MOST_STEPS`."""

    def chart(self) -> Chart | None:
        """Return one chart of the ratings: those with the most steps, at most `MOST_SERIES`."""
        chosen = sorted(self.ratings, key=lambda name: (-len(self.ratings[name]), name))
        shown = chosen[:MOST_SERIES]
        if not shown:
            return None
        series = []
        for name in shown:
            steps, values = zip(*self.ratings[name], strict=True)
            series.append(Series(label=name, steps=steps, values=values, latest=number(values[-1])))
        return Chart(
            title="Ratings", series=tuple(series), omitted=len(chosen) - len(shown), share=False
        )


def history(run: Path) -> LeagueHistory:
    """Read ratings and win rates of all steps; RunError if the metrics cannot be read.

    Damaged lines are left out; the run's page counts them.
    """
    rows = read_metrics(run / METRICS, damaged=DamagedLines())
    ratings: dict[str, list[tuple[int, float]]] = {}
    with_games = []
    for step in sorted(rows):
        for key, value in rows[step].items():
            if key.startswith(RATING) and math.isfinite(value):
                ratings.setdefault(key.removeprefix(RATING), []).append((step, value))
        if any(key.startswith(WIN_RATE) for key in rows[step]):
            with_games.append(step)
    last = len(with_games) - 1
    places = {round(n * last / (MOST_STEPS - 1)) for n in range(MOST_STEPS)} if last > 0 else {0}
    steps = [with_games[place] for place in sorted(places) if place <= last]
    return LeagueHistory(ratings=ratings, matrices=[_matrix(step, rows[step]) for step in steps])


def _matrix(step: int, row: Mapping[str, float]) -> PayoffMatrix:
    pairs: dict[tuple[str, str], float] = {}
    for key, value in row.items():
        if key.startswith(WIN_RATE):
            player, _, opponent = key.removeprefix(WIN_RATE).partition("/")
            if 0 <= value <= 1:
                pairs[player, opponent] = value
    players = sorted({player for player, _ in pairs})[:MOST_PLAYERS]
    opponents = sorted({opponent for _, opponent in pairs}, key=_by_age)[-MOST_PLAYERS:]
    rates = [[pairs.get((player, other)) for other in opponents] for player in players]
    return PayoffMatrix(step=step, players=players, opponents=opponents, rates=rates)


def _by_age(name: str) -> tuple[str, int, str]:
    """Return a key that sorts a player before its snapshots, and these by their updates."""
    player, _, updates = name.partition("@")
    known = updates.isascii() and updates.isdigit() and len(updates) < 13
    return player, int(updates) if known else -1, name


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A row of the table of pairs: a player against an opponent, see `StandingsCell`."""

    player: str
    """Name of the player."""
    opponent: str
    """Name of the opponent."""
    games: int | None
    """Number of games; None in a run that did not record it."""
    rate: float
    """Fraction of games that the player won; a draw counts as half a win."""
    seats: str
    """Seats of the player in these games."""
    age: int | None
    """Steps since the latest of the games; None in a run that did not record it."""


def pairs(lines: Sequence[StandingsRow], *, sort: str, descending: bool) -> list[Pair]:
    """Return all pairs with games; the latest games first unless `sort` names a column."""
    found = [
        Pair(
            player=line.name,
            opponent=other.name,
            games=cell.games,
            rate=cell.rate,
            seats="every seat" if cell.everywhere else ", ".join(cell.seats),
            age=cell.age,
        )
        for line in lines
        for other, cell in zip(lines, line.cells, strict=True)
        if cell is not None
    ]
    column = sort if sort in PAIR_COLUMNS else "age"
    known = [each for each in found if getattr(each, column) is not None]
    known.sort(key=lambda each: getattr(each, column), reverse=descending)
    return [*known, *(each for each in found if getattr(each, column) is None)]


class LeaguePages:
    """Renders the page of a league and its data."""

    def __init__(self, catalogue: RunCatalogue) -> None:
        self.catalogue = catalogue

    def page(self, name: str, *, at: int | None, sort: str, descending: bool) -> str:
        """Render ratings, the matrix at a place of the slider (None: the last one) and the pairs.

        Raises RunError, in one line, if the run has no league or its record is damaged.
        """
        run = self.catalogue.run(name)
        lines, past = _read(run.folder)
        last = len(past.matrices) - 1
        place = last if at is None else min(at, last)
        chart = past.chart()
        return render(
            "viewer_league.html.jinja",
            title=f"League of {name}",
            run=run,
            lines=lines,
            charts=[] if chart is None else [(chart, Markup(draw(chart)))],
            steps=[each.step for each in past.matrices],
            place=place,
            matrix=past.matrices[place] if past.matrices else None,
            pairs=pairs(lines, sort=sort, descending=descending),
            sort=sort if sort in PAIR_COLUMNS else "",
            descending=descending,
            columns=PAIR_COLUMNS,
        )

    def data(self, name: str) -> dict[str, Any]:
        """Return standings, pairs, ratings and all matrices as plain data.

        Raises RunError, in one line, if the run has no league or its record is damaged.
        """
        run = self.catalogue.run(name)
        lines, past = _read(run.folder)
        return {
            "standings": [{"name": line.name, "rating": line.rating} for line in lines],
            "pairs": [asdict(each) for each in pairs(lines, sort="", descending=False)],
            "ratings": past.ratings,
            "matrices": [asdict(each) for each in past.matrices],
        }


def _read(run: Path) -> tuple[list[StandingsRow], LeagueHistory]:
    """Return standings and history; before its first checkpoint, a run has no standings.

    Raises RunError if the run has no league, or if its record is damaged.
    """
    past = history(run)
    try:
        return standings(run), past
    except RunError:
        if not past.ratings or any((run / CHECKPOINTS).glob("[0-9]*")):
            raise
        return [], past


def league_routes(
    leagues: LeaguePages, page: Callable[[Callable[[Request], str]], Handler]
) -> list[Route]:
    """Return the routes of the page of a league and of its data.

    Args:
        leagues: Renders the page, and makes the data.
        page: Converts a function that renders a page to a handler.
    """

    def shown(request: Request) -> str:
        asked = request.query_params
        return leagues.page(
            run_of(request),
            at=number_of(request, "at"),
            sort=asked.get("sort", "")[:200],
            descending=asked.get("down") == "1",
        )

    return [
        Route("/run/{run}/league.json", as_json(lambda r: as_data(leagues.data(run_of(r))))),
        Route("/run/{run}/league", page(shown)),
    ]
