"""A league's standings as the newest checkpoint has them: ratings, and who beats whom."""

from dataclasses import dataclass
from pathlib import Path

from selfplay.errors import RunError
from selfplay.viewer.state import newest_state


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one came to against another."""

    rate: float
    """Share of games won, a draw being half a win."""
    games: float
    """Games that count, the older ones less."""

    @property
    def shade(self) -> str:
        """Its class: beaten-4 (lost nearly all) to beats-4 (won nearly all), even."""
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
    """Everyone of a run's league, the best rated first; raises RunError where it has none."""
    league = newest_state(run).get("league")
    try:
        ratings = {
            name: float(each[0] if isinstance(each, list) else each)
            for name, each in league["ratings"]["ratings"].items()  # type: ignore[index]
        }
        counts = {
            (home, away): each
            for home, away, *each in league["payoff"]["counts"]  # type: ignore[index]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run.name} was trained without a league") from error
    names = sorted(ratings, key=lambda name: (-ratings[name], name))
    return [
        Line(
            name=name,
            rating=ratings[name],
            cells=[_cell(counts.get((name, other))) for other in names],
        )
        for name in names
    ]


def _cell(counts: list[float] | None) -> Cell | None:
    if not counts or not sum(counts):
        return None
    wins, draws, _ = counts
    return Cell(rate=(wins + 0.5 * draws) / sum(counts), games=sum(counts))
