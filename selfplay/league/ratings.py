"""Ratings: one number per player for how strong it is, whoever it has met.

Where who beats whom goes round in a circle no such number tells the truth; the payoff table does.

The payoff table: who beats whom, with what is long past counting less and less.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from selfplay.rollout.matches import Result

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


SCORES: Mapping[Result, float] = {"won": 1.0, "drawn": 0.5, "lost": 0.0}


class Ratings(Protocol):
    """Ratings by name. Whoever is new gets that of a parent, if it has one."""

    def add(self, name: str, parent: str | None = None) -> None:
        """A new one; one that is there already stays as it is."""
        ...

    def book(self, home: str, away: str, result: Result) -> None:
        """A game of these two, and how it came out for `home`."""
        ...

    def rating(self, name: str) -> float:
        """The number."""
        ...

    def forget(self, name: str) -> None:
        """Drop one."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        ...


class Elo:
    """R <- R + k (score - expected), expected = 1 / (1 + 10^((R_other - R) / 400))."""

    def __init__(self, *, k: float = 16.0, start: float = 1500.0) -> None:
        """`k`: the largest step."""
        self.k, self.start = k, start
        self._ratings: dict[str, float] = {}

    def add(self, name: str, parent: str | None = None) -> None:
        """With the parent's number, or `start`."""
        self._ratings.setdefault(name, self._ratings.get(parent or "", self.start))

    def book(self, home: str, away: str, result: Result) -> None:
        """Both move by the same amount."""
        first, second = self._ratings[home], self._ratings[away]
        step = self.k * (SCORES[result] - expected(first, second))
        self._ratings[home], self._ratings[away] = first + step, second - step

    def rating(self, name: str) -> float:
        """The number."""
        return self._ratings[name]

    def forget(self, name: str) -> None:
        """Drop one."""
        del self._ratings[name]

    def state_dict(self) -> dict[str, Any]:
        """The numbers."""
        return {"ratings": dict(self._ratings)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._ratings = dict(state["ratings"])


def expected(rating: float, other: float) -> float:
    """The score that Elo expects of one with this rating against the other."""
    return float(1 / (1 + 10 ** ((other - rating) / 400)))


class OpenSkill:
    """The Bayesian rating of the package openskill (Weng and Lin 2011): a mean and its deviation.

    Its numbers are TrueSkill's: everybody begins at 25, and 99.7 % lie between 0 and 50.
    """

    def __init__(self, *, mu: float = 25.0, sigma: float = 25 / 3, tau: float = 25 / 300) -> None:
        """Args:
        mu: The mean that everybody begins with.
        sigma: Its deviation then.
        tau: How much less is known of one before every game, because players change.
        """
        from openskill.models import PlackettLuce  # a tenth of a second that only a league needs

        self._model = PlackettLuce(mu=mu, sigma=sigma, tau=tau)
        self.start = (mu, sigma)
        self._ratings: dict[str, tuple[float, float]] = {}

    def add(self, name: str, parent: str | None = None) -> None:
        """With the parent's mean and deviation, or the start's."""
        self._ratings.setdefault(name, self._ratings.get(parent or "", self.start))

    def book(self, home: str, away: str, result: Result) -> None:
        """Both move, the less known one further."""
        names, scores = (home, away), (SCORES[result], 1 - SCORES[result])
        teams = [[self._model.rating(*self._ratings[name])] for name in names]
        for name, (rated,) in zip(names, self._model.rate(teams, scores=list(scores)), strict=True):
            self._ratings[name] = (rated.mu, rated.sigma)

    def rating(self, name: str) -> float:
        """The mean."""
        return self._ratings[name][0]

    def forget(self, name: str) -> None:
        """Drop one."""
        del self._ratings[name]

    def state_dict(self) -> dict[str, Any]:
        """Mean and deviation of each."""
        return {"ratings": {name: list(each) for name, each in self._ratings.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._ratings = {name: (mu, sigma) for name, (mu, sigma) in state["ratings"].items()}
