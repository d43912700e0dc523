"""Matchmaking: whom a player meets next.

AlphaStar's three kinds of players (Vinyals et al. 2019), by its released pseudocode.

A main player learns to beat everybody. A main exploiter looks for what the main players do wrong
now, a league exploiter for what everybody in the league does wrong; both begin again once what they
found stands in the league as a snapshot. Counts of updates stand in for its steps of the game.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias, get_args

from selfplay.errors import nearest
from selfplay.league import Chances, LeagueState, Matchmaking

Weighting = Literal["variance", "linear", "linear_capped", "squared"]
Weigh: TypeAlias = Callable[[float], float]

WEIGHTS: Mapping[Weighting, Weigh] = {
    "variance": lambda rate: rate * (1 - rate),
    "linear": lambda rate: 1 - rate,
    "linear_capped": lambda rate: min(0.5, 1 - rate),
    "squared": lambda rate: (1 - rate) ** 2,
}
"""By the rate at which one wins: variance prefers one's equals, the others the hard opponents."""


def pfsp(rates: Sequence[float], weighting: Weighting) -> list[float]:
    """Prioritised fictitious self-play: the chance of each opponent, by how often it is beaten.

    As in AlphaStar's league; uniform where all weights are next to nothing.
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
    """`pfsp` over some opponents; none of nobody."""
    rates = table.rates(player, opponents)
    return dict(zip(opponents, pfsp(rates, weighting), strict=True)) if opponents else {}


class BaseMatchmaking:
    """What matchmaking is where it does not say otherwise."""

    main: ClassVar[bool] = True
    is_exploiter: ClassVar[bool] = False
    reset: float = 0.0

    def targets(self, player: str, table: LeagueState) -> Sequence[str]:
        """All snapshots."""
        return table.past()


class Current(BaseMatchmaking):
    """Plain self-play: the player itself, which learns in every seat."""

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Itself."""
        return {player: 1.0}


class Latest(BaseMatchmaking):
    """The newest snapshot of the player: itself as it was a while ago, which stands still.

    Failure mode: as in plain self-play, what was learned against one can be forgotten against the
    next, so that play goes round in circles.
    """

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Its newest snapshot; itself before there is any."""
        return {(table.past(player) or [player])[-1]: 1.0}


class Uniform(BaseMatchmaking):
    """Any snapshot of any player, all alike: fictitious self-play."""

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Equal chances; itself before there is a snapshot."""
        past = table.past() or [player]
        return {name: 1 / len(past) for name in past}


class PFSP(BaseMatchmaking):
    """Any snapshot of any player, more often those against which the player still loses.

    `variance` prefers those that it beats half of the time. Failure mode: the rates are estimates
    from few games, and an opponent that nobody can learn anything from keeps its share with every
    weighting but that one.
    """

    def __init__(self, *, weighting: Weighting = "squared") -> None:
        """`weighting`: what a rate is worth, see `WEIGHTS`."""
        pfsp([0.5], weighting)
        self.weighting: Weighting = weighting

    def chances(self, player: str, table: LeagueState) -> Chances:
        """By the rates; itself before there is a snapshot."""
        return prioritised(player, table.past(), table, self.weighting) or {player: 1.0}


class Anchors(BaseMatchmaking):
    """Opponents that never change, such as a script: what they are beaten by is progress."""

    def __init__(self, *, weights: Mapping[str, float] | None = None) -> None:
        """`weights` by name; all anchors of the league alike where None."""
        if weights is not None and (not weights or min(weights.values()) <= 0):
            raise ValueError(f"weights names anchors, each with a weight above 0, not {weights!r}")
        self.weights = weights

    def chances(self, player: str, table: LeagueState) -> Chances:
        """By weight; raises ValueError where the league has no such anchor."""
        weights = dict.fromkeys(table.anchors, 1.0) if self.weights is None else self.weights
        if not weights:
            raise ValueError("there are no anchors; name some in population.opponents")
        for name in weights:
            if name not in table.anchors:
                raise ValueError(f"no anchor {name!r}; {nearest(name, table.anchors)}")
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}


class MixedMatchmaking(BaseMatchmaking):
    """One of several ways at a time, by weight."""

    def __init__(self, *, ways: Mapping[str, Matchmaking], weights: Mapping[str, float]) -> None:
        """`ways` by name, `weights` by the same names; a weight of 0 leaves a way out."""
        for name in (*ways, *weights):
            if name not in ways or name not in weights:
                raise ValueError(
                    f"ways and weights have the same names, but {name!r} is in one of them only"
                )
        if not ways or min(weights.values()) < 0 or not sum(weights.values()):
            raise ValueError(f"weights are not negative, and not all 0: {dict(weights)!r}")
        self.ways, self.weights = ways, weights

    def chances(self, player: str, table: LeagueState) -> Chances:
        """The weighted mean of theirs."""
        return mixed(
            [(self.weights[name], way.chances(player, table)) for name, way in self.ways.items()]
        )


def mixed(parts: Sequence[tuple[float, Chances]]) -> Chances:
    """Chances of several ways together, each with its weight."""
    total = sum(weight for weight, _ in parts)
    found: Chances = {}
    for weight, chances in parts:
        for name, chance in chances.items() if weight else ():
            found[name] = found.get(name, 0.0) + weight / total * chance
    return found


class MainPlayer(BaseMatchmaking):
    """Half of its games against all snapshots, the hard ones above all; the rest against itself.

    In `verify` of the games it is checked for what it has lost: a main exploiter's snapshot that
    beats it, or a snapshot of a main player that it used to beat and does not beat any more. Where
    nothing is found, and in the rest of the games, it meets a main player as it is now, or its
    snapshots as a curriculum if that one is too strong.
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
        pfsp: Share of the games against all snapshots.
        verify: Share in which it is checked.
        exploited: A main exploiter's snapshot that it beats less often is an exploit.
        forgotten: A snapshot that it beats less often, and beat more often, is forgotten.
        too_strong: A main player that it beats no more often is too strong for it.
        """
        if min(pfsp, verify) < 0 or pfsp + verify > 1:
            raise ValueError(f"pfsp and verify are shares of the games: {pfsp}, {verify}")
        self.pfsp, self.verify = pfsp, verify
        self.exploited, self.forgotten, self.too_strong = exploited, forgotten, too_strong

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Of all that its branches lead to."""
        mains = table.mains
        everybody = prioritised(player, table.past(), table, "squared") or {player: 1.0}
        parts = [(self.pfsp, everybody)]
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
        hunters = [name for name, each in table.players.items() if each.is_exploiter]
        exploits = table.past(*hunters) if hunters else []
        if min(table.rates(player, exploits), default=1.0) < self.exploited:
            return prioritised(player, exploits, table, "squared")
        past = table.past(main)
        past = past[: before_decline(table.rates(player, past))]
        if min(table.rates(player, past), default=1.0) < self.forgotten:
            return prioritised(player, past, table, "squared")
        return {}


class MainExploiter(BaseMatchmaking):
    """Meets a main player as it is now; its snapshots as a curriculum where it hardly ever wins."""

    main: ClassVar[bool] = False
    is_exploiter: ClassVar[bool] = True

    def __init__(self, *, hopeless: float = 0.1, reset: float = 1.0) -> None:
        """`hopeless`: a main player that it beats no more often is too strong; `reset`: the chance
        that it begins again when a snapshot of it has been made."""
        self.hopeless, self.reset = hopeless, _chance(reset)

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Of the main players, or of their snapshots."""
        mains = table.mains
        parts = []
        for main in mains:
            found: Chances = {main: 1.0}
            if table.payoff.rate(player, main) <= self.hopeless:
                found = prioritised(player, table.past(main), table, "variance") or found
            parts.append((1.0, found))
        return mixed(parts)

    def targets(self, player: str, table: LeagueState) -> Sequence[str]:
        """The main players as they are."""
        return table.mains


class LeagueExploiter(BaseMatchmaking):
    """Meets all snapshots, those above all that it does not beat yet."""

    main: ClassVar[bool] = False

    def __init__(self, *, reset: float = 0.25) -> None:
        """`reset`: the chance that it begins again when a snapshot of it has been made."""
        self.reset = _chance(reset)

    def chances(self, player: str, table: LeagueState) -> Chances:
        """Of the snapshots; a main player before there is any."""
        past = prioritised(player, table.past(), table, "linear_capped")
        return past or dict.fromkeys(table.mains, 1 / len(table.mains))


def before_decline(rates: Sequence[float]) -> int:
    """How many are left, from the oldest on, without those at the end that fall steadily.

    That the newest snapshots are the hardest is as it should be; what stands before a rise was
    beaten less often than what came after it.
    """
    for last in range(len(rates) - 1, 0, -1):
        if rates[last - 1] < rates[last]:
            return last + 1
    return 0


def _chance(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"reset is a chance, not {value}")
    return value
