"""The payoff table: who beats whom, with what is long past counting less and less."""

from collections.abc import Mapping
from typing import Any

from selfplay.versus import Result

FLIPPED: Mapping[Result, Result] = {"won": "lost", "drawn": "drawn", "lost": "won"}
PLACES: Mapping[Result, int] = {"won": 0, "drawn": 1, "lost": 2}


class Payoff:
    """Wins, draws and losses of every ordered pair.

    A new result first multiplies what the pair has by `decay`, as AlphaStar's league does, so that
    the table follows policies that learn: it remembers about 1 / (1 - decay) games.
    """

    def __init__(self, *, decay: float = 0.99) -> None:
        """`decay` of 1 forgets nothing."""
        if not 0.0 < decay <= 1.0:
            raise ValueError(f"decay lies in (0, 1], not {decay}")
        self.decay = decay
        self._counts: dict[tuple[str, str], list[float]] = {}

    def book(self, home: str, away: str, result: Result) -> None:
        """A game of these two, and how it came out for `home`."""
        for pair, came in (((home, away), result), ((away, home), FLIPPED[result])):
            counts = [count * self.decay for count in self._counts.get(pair, (0.0, 0.0, 0.0))]
            counts[PLACES[came]] += 1.0
            self._counts[pair] = counts

    def games(self, home: str, away: str) -> float:
        """How many games the pair counts."""
        return sum(self._counts.get((home, away), ()))

    def rate(self, home: str, away: str) -> float:
        """The share of games that `home` wins, a draw being half a win; 0.5 before any game."""
        wins, draws, losses = self._counts.get((home, away), (0.0, 0.0, 0.0))
        games = wins + draws + losses
        return (wins + 0.5 * draws) / games if games else 0.5

    def forget(self, name: str) -> None:
        """Drop all games of one."""
        self._counts = {pair: each for pair, each in self._counts.items() if name not in pair}

    def state_dict(self) -> dict[str, Any]:
        """Home, away, wins, draws and losses of every pair."""
        return {"counts": [[*pair, *counts] for pair, counts in self._counts.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._counts = {(home, away): counts for home, away, *counts in state["counts"]}
