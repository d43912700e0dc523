"""A league's standings as the newest checkpoint has them: ratings, and who beats whom."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from selfplay.errors import RunError
from selfplay.viewer.state import newest_state

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
class Cell:
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
class Line:
    """One of the league."""

    name: str
    """A player, `player@updates` for a snapshot of one, or an anchor."""
    rating: float
    """The mean of its rating."""
    cells: list[Cell | None]
    """Against everyone in the order of the lines; None where they have not met."""


def standings(run: Path) -> list[Line]:
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
        Line(
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

    def cell(self, name: str, other: str, counts: Sequence[float] | None) -> Cell | None:
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
        return Cell(
            rate=(wins + 0.5 * draws) / sum(counts),
            games=sum(each[3] for each in games) if games else None,
            counted=sum(counts),
            seats=tuple(seat for seat in self.seats if seat in sat),
            everywhere=bool(sat) and sat >= set(self.seats),
            age=max(self.now - max(each[4] for each in games), 0) if games else None,
        )
