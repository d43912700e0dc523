"""Results of a league: a payoff table of all pairs, and one rating per player.

A rating cannot describe players that beat each other in a cycle; the payoff table can. Older
results count less in the payoff table.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from selfplay.rollout.matches import Result

FLIPPED: Mapping[Result, Result] = {"won": "lost", "drawn": "drawn", "lost": "won"}
PLACES: Mapping[Result, int] = {"won": 0, "drawn": 1, "lost": 2}


class Payoff:
    """Wins, ties and losses of every ordered pair.

    A new result first multiplies the counts of the pair by `decay`, as in AlphaStar's league, so
    that the table follows policies that learn. It averages over about 1 / (1 - decay) games.
    """

    def __init__(self, *, decay: float = 0.99) -> None:
        """Args:
        decay: Factor of the older counts at a new result; 1 keeps all results.
        """
        if not 0.0 < decay <= 1.0:
            raise ValueError(f"decay must be in (0, 1], not {decay}")
        self.decay = decay
        self._counts: dict[tuple[str, str], list[float]] = {}
        self._remembered: dict[tuple[str, str], tuple[float, float]] = {}

    def record(self, home: str, away: str, result: Result) -> None:
        """Add a game of two players; `result` is the result of `home`."""
        for pair, own in (((home, away), result), ((away, home), FLIPPED[result])):
            counts = [count * self.decay for count in self._counts.get(pair, (0.0, 0.0, 0.0))]
            counts[PLACES[own]] += 1.0
            self._counts[pair] = counts

    def games(self, home: str, away: str) -> float:
        """Return the number of games of a pair, after decay."""
        return sum(self._counts.get((home, away), ()))

    def rate(self, home: str, away: str) -> float:
        """Return the win rate of `home`; a tie is half a win, and no games give 0.5."""
        wins, ties, losses = self._counts.get((home, away), (0.0, 0.0, 0.0))
        games = wins + ties + losses
        return (wins + 0.5 * ties) / games if games else 0.5

    def remember(self, copy: str, player: str) -> None:
        """Store a player's current win rates for a frozen copy that was just made of the player.

        Copies do not play each other, so nothing else is known about their strength against each
        other. The copy itself has played no game, so `games` and `rate` do not contain these rates.
        """
        for home, away in list(self._counts):
            if home == player:
                self._remembered[copy, away] = (self.rate(home, away), self.games(home, away))

    def between(self, home: str, away: str) -> tuple[float, float]:
        """Return the win rate of the first player and the number of games that it is computed from.

        These are the games of the pair. If there are none, they are the games of the player of the
        younger copy against the older copy, at the time when the younger copy was made. Without any
        game the rate is 0.5.

        Args:
            home: The first player, whose win rate is returned.
            away: The second player.
        """
        if games := self.games(home, away):
            return self.rate(home, away), games
        if (home, away) in self._remembered:
            return self._remembered[home, away]
        rate, games = self._remembered.get((away, home), (0.5, 0.0))
        return 1 - rate, games

    def forget(self, name: str) -> None:
        """Remove all games of a player."""
        self._counts = {pair: each for pair, each in self._counts.items() if name not in pair}
        self._remembered = {p: each for p, each in self._remembered.items() if name not in p}

    def state_dict(self) -> dict[str, Any]:
        """Return home, away, wins, ties and losses of every pair, and the remembered rates."""
        return {
            "counts": [[*pair, *counts] for pair, counts in self._counts.items()],
            "remembered": [[*pair, *each] for pair, each in self._remembered.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._counts = {(home, away): counts for home, away, *counts in state["counts"]}
        self._remembered = {
            (copy, away): (rate, games)
            for copy, away, rate, games in state.get("remembered", ())  # older runs have none
        }


SCORES: Mapping[Result, float] = {"won": 1.0, "drawn": 0.5, "lost": 0.0}


class Ratings(Protocol):
    """Ratings by name. A new player gets the rating of its parent, if it has one."""

    def add(self, name: str, parent: str | None = None) -> None:
        """Add a player; a known player keeps its rating."""
        ...

    def record(self, home: str, away: str, result: Result) -> None:
        """Add a game of two players; `result` is the result of `home`."""
        ...

    def rating(self, name: str) -> float:
        """Return the rating of a player."""
        ...

    def forget(self, name: str) -> None:
        """Remove a player."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        ...


class Elo:
    """Elo rating: R <- R + k (score - expected), expected = 1 / (1 + 10^((R_other - R) / 400))."""

    def __init__(self, *, k: float = 16.0, start: float = 1500.0) -> None:
        """Args:
        k: Largest change of a rating by one game.
        start: Initial rating.
        """
        self.k, self.start = k, start
        self._ratings: dict[str, float] = {}

    def add(self, name: str, parent: str | None = None) -> None:
        """Add a player with the rating of its parent, or `start`."""
        self._ratings.setdefault(name, self._ratings.get(parent or "", self.start))

    def record(self, home: str, away: str, result: Result) -> None:
        """Change both ratings by the same amount."""
        first, second = self._ratings[home], self._ratings[away]
        step = self.k * (SCORES[result] - expected(first, second))
        self._ratings[home], self._ratings[away] = first + step, second - step

    def rating(self, name: str) -> float:
        """Return the rating of a player."""
        return self._ratings[name]

    def forget(self, name: str) -> None:
        """Remove a player."""
        del self._ratings[name]

    def state_dict(self) -> dict[str, Any]:
        """Return the ratings."""
        return {"ratings": dict(self._ratings)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._ratings = dict(state["ratings"])


def expected(rating: float, other: float) -> float:
    """Return the expected score of a player with `rating` against one with `other`."""
    return float(1 / (1 + 10 ** ((other - rating) / 400)))


class OpenSkill:
    """The Bayesian rating of the package openskill (Weng and Lin 2011): a mean and its deviation.

    The scale is TrueSkill's: the initial rating is 25, and 99.7 % of its distribution is between 0
    and 50.
    """

    def __init__(self, *, mu: float = 25.0, sigma: float = 25 / 3, tau: float = 25 / 300) -> None:
        """Args:
        mu: Initial mean.
        sigma: Initial standard deviation.
        tau: Standard deviation that is added before every game, because players change.
        """
        from openskill.models import PlackettLuce  # 0.1 s to import, needed by leagues only

        self._model = PlackettLuce(mu=mu, sigma=sigma, tau=tau)
        self.start = (mu, sigma)
        self._ratings: dict[str, tuple[float, float]] = {}

    def add(self, name: str, parent: str | None = None) -> None:
        """Add a player with the mean and deviation of its parent, or the initial ones."""
        self._ratings.setdefault(name, self._ratings.get(parent or "", self.start))

    def record(self, home: str, away: str, result: Result) -> None:
        """Change both ratings; the more uncertain rating changes more."""
        names, scores = (home, away), (SCORES[result], 1 - SCORES[result])
        teams = [[self._model.rating(*self._ratings[name])] for name in names]
        for name, (rated,) in zip(names, self._model.rate(teams, scores=list(scores)), strict=True):
            self._ratings[name] = (rated.mu, rated.sigma)

    def rating(self, name: str) -> float:
        """Return the mean of a player's rating."""
        return self._ratings[name][0]

    def forget(self, name: str) -> None:
        """Remove a player."""
        del self._ratings[name]

    def state_dict(self) -> dict[str, Any]:
        """Return mean and deviation of each player."""
        return {"ratings": {name: list(each) for name, each in self._ratings.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._ratings = {name: (mu, sigma) for name, (mu, sigma) in state["ratings"].items()}
