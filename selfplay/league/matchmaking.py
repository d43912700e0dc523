"""Matchmaking: rules that choose the next opponent of a player.

AlphaStar's three kinds of players (Vinyals et al. 2019) follow its released pseudocode. A main
player learns to beat all players. A main exploiter looks for weaknesses of the current main
players, a league exploiter for weaknesses of all players; both can be reset once their strategy is
in the league as a snapshot. Updates are counted instead of AlphaStar's environment steps.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np

from selfplay.errors import nearest
from selfplay.league import Chances, LeagueState, Matchmaking
from selfplay.league.empirical_game import NoEquilibriumError, nash

Weighting = Literal["variance", "linear", "linear_capped", "squared"]
Weigh: TypeAlias = Callable[[float], float]

WEIGHTS: Mapping[Weighting, Weigh] = {
    "variance": lambda rate: rate * (1 - rate),
    "linear": lambda rate: 1 - rate,
    "linear_capped": lambda rate: min(0.5, 1 - rate),
    "squared": lambda rate: (1 - rate) ** 2,
}
"""Weight of an opponent by the win rate: variance prefers equal opponents, the others hard ones."""


def pfsp(rates: Sequence[float], weighting: Weighting) -> list[float]:
    """Return the probability of each opponent by prioritised fictitious self-play (AlphaStar).

    The probabilities are uniform if all weights are almost 0.

    Args:
        rates: Win rate against each opponent.
        weighting: Name of the function in `WEIGHTS`.
    """
    if weighting not in get_args(Weighting):
        hint = nearest(weighting, get_args(Weighting))
        raise ValueError(f"weighting: no weighting {weighting!r}; {hint}")
    weights = [WEIGHTS[weighting](rate) for rate in rates]
    total = sum(weights)
    if total < 1e-10:
        return [1 / len(rates) for _ in rates]
    return [weight / total for weight in weights]


def prioritised(
    player: str, opponents: Sequence[str], table: LeagueState, weighting: Weighting
) -> Chances:
    """Return the probabilities by `pfsp`; {} if there are no opponents."""
    rates = table.rates(player, opponents)
    return dict(zip(opponents, pfsp(rates, weighting), strict=True)) if opponents else {}


class BaseMatchmaking:
    """Defaults of a matchmaking: a main player that is never reset."""

    main: ClassVar[bool] = True
    exploits_mains_only: ClassVar[bool] = False
    reset: float = 0.0

    def targets(self, player: str, table: LeagueState) -> Sequence[str]:
        """Return all snapshots."""
        return table.past()


class Current(BaseMatchmaking):
    """Plain self-play: the player meets itself and learns in every seat."""

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Return the player itself."""
        return {player: 1.0}


class Latest(BaseMatchmaking):
    """The player meets its own newest snapshot.

    Failure mode: as in plain self-play, the player can forget how to beat earlier snapshots, so
    that the strategies repeat in a cycle.
    """

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Return the newest snapshot of the player; the player itself if there is none."""
        return {(table.past(player) or [player])[-1]: 1.0}


class Uniform(BaseMatchmaking):
    """Fictitious self-play: all snapshots of all players are equally likely."""

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Return equal probabilities; the player itself if there is no snapshot."""
        past = table.past() or [player]
        return {name: 1 / len(past) for name in past}


class PFSP(BaseMatchmaking):
    """Prioritised fictitious self-play: snapshots that still beat the player are more likely.

    `variance` prefers snapshots with a win rate of one half. Failure mode: the win rates are
    estimates from few games, and every weighting except `variance` keeps choosing opponents that
    are too strong to learn from.
    """

    def __init__(self, *, weighting: Weighting = "squared") -> None:
        """`weighting`: name of the function in `WEIGHTS`."""
        pfsp([0.5], weighting)
        self.weighting: Weighting = weighting

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Return probabilities by the win rates; the player itself if there is no snapshot."""
        return prioritised(player, table.past(), table, self.weighting) or {player: 1.0}


class Nash(BaseMatchmaking):
    """PSRO with the Nash equilibrium as meta-strategy (1711.00832).

    The snapshots are the moves of a symmetric zero-sum game, whose payoff is twice the win rate
    minus 1. The player meets the snapshots with the probabilities of the equilibrium of this game;
    of several equilibria, the one with the largest entropy is used. So the player learns a best
    response to the strongest mixture of earlier policies, and not to policies that it beats anyway.

    The win rate of a snapshot against an older one is that of its player at the time when it was
    made. A rate from few games is pulled towards one half, as if `prior` more games had been ties.
    Failure mode: the equilibrium jumps when the sign of an estimated payoff changes, and policies
    learn less from one opponent than from many.
    """

    def __init__(self, *, prior: float = 4.0) -> None:
        """`prior`: number of virtual ties of each pair of snapshots."""
        if not prior >= 0:
            raise ValueError(f"prior is a number of games of at least 0, not {prior}")
        self.prior = prior

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Return the equilibrium; the player itself if there is no snapshot.

        If no solver finds an equilibrium, all snapshots are equally likely.
        """
        past = table.past()
        if not past:
            return {player: 1.0}
        try:
            mixture = nash(self.payoffs(past, table)).tolist()
        except NoEquilibriumError:
            mixture = [1 / len(past)] * len(past)
        return {name: chance for name, chance in zip(past, mixture, strict=True) if chance > 0}

    def payoffs(self, names: Sequence[str], table: LeagueState) -> np.ndarray:
        """Return [N, N], the estimated payoff of each player (row) against each other one."""
        found = np.zeros((len(names), len(names)))
        for row, home in enumerate(names):
            for column, away in enumerate(names[:row]):
                rate, games = table.payoff.between(home, away)
                gain = (2 * rate - 1) * games / (games + self.prior) if games else 0.0
                found[row, column], found[column, row] = gain, -gain
        return found


class Anchors(BaseMatchmaking):
    """Opponents that never change, such as scripts, so that beating them shows progress."""

    def __init__(self, *, weights: Mapping[str, float] | None = None) -> None:
        """`weights`: weight by anchor; None: all anchors of the league with equal weights."""
        if weights is not None and (not weights or min(weights.values()) <= 0):
            raise ValueError(
                f"weights needs at least one anchor, with weights above 0, not {weights!r}"
            )
        self.weights = weights

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Return probabilities by weight; raises ValueError for an unknown anchor."""
        weights = dict.fromkeys(table.anchors, 1.0) if self.weights is None else self.weights
        if not weights:
            raise ValueError("there are no anchors; name some in population.opponents")
        for name in weights:
            if name not in table.anchors:
                raise ValueError(f"no anchor {name!r}; {nearest(name, table.anchors)}")
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}


class MixedMatchmaking(BaseMatchmaking):
    """Chooses one of several kinds of matchmaking at random, by weight."""

    def __init__(self, *, ways: Mapping[str, Matchmaking], weights: Mapping[str, float]) -> None:
        """Args:
        ways: Matchmaking by name.
        weights: Weights by the same names; 0 disables one.
        """
        for name in (*ways, *weights):
            if name not in ways or name not in weights:
                raise ValueError(
                    f"ways and weights have the same names, but {name!r} is in one of them only"
                )
        if not ways or min(weights.values()) < 0 or not sum(weights.values()):
            raise ValueError(f"weights must not be negative, and not all 0: {dict(weights)!r}")
        self.ways, self.weights = ways, weights

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Return the weighted mean of the probabilities of all ways."""
        return mixed(
            [(self.weights[name], way.chances(player, table)) for name, way in self.ways.items()]
        )


def mixed(parts: Sequence[tuple[float, Chances]]) -> Chances:
    """Return the weighted mean of several distributions, given as (weight, probabilities)."""
    total = sum(weight for weight, _ in parts)
    mean: Chances = {}
    for weight, chances in parts:
        for name, chance in chances.items() if weight else ():
            mean[name] = mean.get(name, 0.0) + weight / total * chance
    return mean


class MainPlayer(BaseMatchmaking):
    """AlphaStar's main player: PFSP against all snapshots, checks of old opponents, self-play.

    The fraction `pfsp` of its games is against all snapshots, with hard ones preferred. The
    fraction `verify` is against opponents that it can no longer beat: a snapshot of a main
    exploiter that beats it, or an older snapshot of a main player (win rate below `forgotten`).
    If there is none, and in all other games, it meets a current main player, or the snapshots of
    that player as a curriculum if the player is too strong.
    """

    def __init__(
        self,
        *,
        pfsp: float = 0.5,
        verify: float = 0.15,
        exploited: float = 0.3,
        forgotten: float = 0.7,
        too_strong: float = 0.3,
    ) -> None:
        """Args:
        pfsp: Fraction of the games against all snapshots.
        verify: Fraction of the games against old opponents.
        exploited: A main exploiter's snapshot beats the player if its win rate is below this.
        forgotten: Win rate against an older snapshot below which it counts as forgotten.
        too_strong: A main player is too strong if the win rate against it is at most this.
        """
        if min(pfsp, verify) < 0 or pfsp + verify > 1:
            raise ValueError(
                f"pfsp and verify must be fractions with a sum of at most 1: {pfsp}, {verify}"
            )
        self.pfsp, self.verify = pfsp, verify
        self.exploited, self.forgotten, self.too_strong = exploited, forgotten, too_strong

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Return the probabilities over all three kinds of games."""
        mains = table.mains
        snapshots = prioritised(player, table.past(), table, "squared") or {player: 1.0}
        parts = [(self.pfsp, snapshots)]
        for main in mains:
            equal = self._against(main, player, table)
            verified = self._verified(main, player, table) or equal
            parts.append((self.verify / len(mains), verified))
            parts.append(((1 - self.pfsp - self.verify) / len(mains), equal))
        return mixed(parts)

    def _against(self, main: str, player: str, table: LeagueState) -> Chances:
        if table.payoff.rate(player, main) > self.too_strong:
            return {main: 1.0}
        return prioritised(player, table.past(main), table, "variance") or {main: 1.0}

    def _verified(self, main: str, player: str, table: LeagueState) -> Chances:
        exploiters = [name for name, each in table.players.items() if each.exploits_mains_only]
        exploits = table.past(*exploiters) if exploiters else []
        if min(table.rates(player, exploits), default=1.0) < self.exploited:
            return prioritised(player, exploits, table, "squared")
        past = table.past(main)
        past = past[: before_decline(table.rates(player, past))]
        if min(table.rates(player, past), default=1.0) < self.forgotten:
            return prioritised(player, past, table, "squared")
        return {}


class MainExploiter(BaseMatchmaking):
    """Meets a current main player, or that player's snapshots as a curriculum if it rarely wins."""

    main: ClassVar[bool] = False
    exploits_mains_only: ClassVar[bool] = True

    def __init__(self, *, hopeless: float = 0.1, reset: float = 1.0) -> None:
        """Args:
        hopeless: A main player is too strong if the win rate against it is at most this.
        reset: Probability of a reset to the initial weights after each new snapshot.
        """
        self.hopeless, self.reset = hopeless, _chance(reset)

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Return probabilities over the main players, or over their snapshots."""
        mains = table.mains
        parts = []
        for main in mains:
            chances: Chances = {main: 1.0}
            if table.payoff.rate(player, main) <= self.hopeless:
                chances = prioritised(player, table.past(main), table, "variance") or chances
            parts.append((1.0, chances))
        return mixed(parts)

    def targets(self, player: str, table: LeagueState) -> Sequence[str]:
        """Return the main players."""
        return table.mains


class LeagueExploiter(BaseMatchmaking):
    """Meets all snapshots; those that it does not beat yet are more likely."""

    main: ClassVar[bool] = False

    def __init__(self, *, reset: float = 0.25) -> None:
        """`reset`: probability of a reset to the initial weights after each new snapshot."""
        self.reset = _chance(reset)

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Return probabilities over the snapshots; over the main players if there are none."""
        past = prioritised(player, table.past(), table, "linear_capped")
        return past or dict.fromkeys(table.mains, 1 / len(table.mains))


def before_decline(rates: Sequence[float]) -> int:
    """Return the length of `rates` up to the last rise; 0 if no rate is above the one before it.

    Args:
        rates: Win rates against snapshots, from the oldest to the newest. A steady decline at the
            end is expected, because newer snapshots are stronger.
    """
    for last in range(len(rates) - 1, 0, -1):
        if rates[last - 1] < rates[last]:
            return last + 1
    return 0


def _chance(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"reset must be a probability, not {value}")
    return value
