"""Matchmaking: whom a player meets next."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias, get_args

from selfplay.errors import nearest
from selfplay.league import Chances, Matchmaking, Table

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
    player: str, opponents: Sequence[str], table: Table, weighting: Weighting
) -> Chances:
    """`pfsp` over some opponents; none of nobody."""
    rates = table.rates(player, opponents)
    return dict(zip(opponents, pfsp(rates, weighting), strict=True)) if opponents else {}


class Ordinary:
    """What matchmaking is where it does not say otherwise."""

    main: ClassVar[bool] = True
    hunts: ClassVar[bool] = False
    reset: float = 0.0

    def rivals(self, player: str, table: Table) -> Sequence[str]:
        """All snapshots."""
        return table.past()


class Current(Ordinary):
    """Plain self-play: the player itself, which learns in every seat."""

    def chances(self, player: str, table: Table) -> Chances:
        """Itself."""
        return {player: 1.0}


class Latest(Ordinary):
    """The newest snapshot of the player: itself as it was a while ago, which stands still.

    Failure mode: as in plain self-play, what was learned against one can be forgotten against the
    next, so that play goes round in circles.
    """

    def chances(self, player: str, table: Table) -> Chances:
        """Its newest snapshot; itself before there is any."""
        return {(table.past(player) or [player])[-1]: 1.0}


class Uniform(Ordinary):
    """Any snapshot of any player, all alike: fictitious self-play."""

    def chances(self, player: str, table: Table) -> Chances:
        """Equal chances; itself before there is a snapshot."""
        past = table.past() or [player]
        return {name: 1 / len(past) for name in past}


class PFSP(Ordinary):
    """Any snapshot of any player, more often those against which the player still loses.

    `variance` prefers those that it beats half of the time. Failure mode: the rates are estimates
    from few games, and an opponent that nobody can learn anything from keeps its share with every
    weighting but that one.
    """

    def __init__(self, *, weighting: Weighting = "squared") -> None:
        """`weighting`: what a rate is worth, see `WEIGHTS`."""
        pfsp([0.5], weighting)
        self.weighting: Weighting = weighting

    def chances(self, player: str, table: Table) -> Chances:
        """By the rates; itself before there is a snapshot."""
        return prioritised(player, table.past(), table, self.weighting) or {player: 1.0}


class Anchors(Ordinary):
    """Opponents that never change, such as a script: what they are beaten by is progress."""

    def __init__(self, *, weights: Mapping[str, float] | None = None) -> None:
        """`weights` by name; all anchors of the league alike where None."""
        if weights is not None and (not weights or min(weights.values()) <= 0):
            raise ValueError(f"weights names anchors, each with a weight above 0, not {weights!r}")
        self.weights = weights

    def chances(self, player: str, table: Table) -> Chances:
        """By weight; raises ValueError where the league has no such anchor."""
        weights = dict.fromkeys(table.anchors, 1.0) if self.weights is None else self.weights
        if not weights:
            raise ValueError("there are no anchors; name some in population.opponents")
        for name in weights:
            if name not in table.anchors:
                raise ValueError(f"no anchor {name!r}; {nearest(name, table.anchors)}")
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}


class Mixture(Ordinary):
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

    def chances(self, player: str, table: Table) -> Chances:
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
