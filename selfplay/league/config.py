"""What a config says of a league, and whether it makes sense."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from selfplay.arena import Arena
from selfplay.errors import ConfigError, nearest
from selfplay.league import LeagueState, Matchmaking
from selfplay.league.ratings import Payoff, Ratings
from selfplay.league.snapshots import EvictionPolicy, SnapshotTrigger

DEFAULT = "default"
"""Stands for the policy of the roles that the league seats, whatever it is called."""


@dataclass(frozen=True, kw_only=True)
class PlayerConfig:
    """A policy that learns in the league."""

    matchmaking: Matchmaking
    """Whom it meets."""
    add: SnapshotTrigger
    """When a snapshot of it is added."""


@dataclass(frozen=True, kw_only=True)
class LeagueConfig:
    """Who plays in a league, and what it remembers.

    One group in turn is every player's match: only that player learns from it, from one seat, with
    an opponent in all the others; or from all seats, where it meets itself.
    """

    players: Mapping[str, PlayerConfig]
    """By the name of the policy; `default` is that of the seats."""
    drop: EvictionPolicy
    """Which snapshots go, and how many may stay."""
    payoff: Payoff
    """Who beats whom."""
    ratings: Ratings
    """How strong each is."""
    anchors: Sequence[str] | None = None
    """Those of `population.opponents` that it may seat; all where None."""
    seats: Sequence[str] = ()
    """The agents that change places, where the arena has others too (a judge); all where empty."""
    opponents_per_step: int = 0
    """Different opponents that a player draws per step, in turn for its groups; 0: one per group.
    Each opponent is a batch of its own in the engine, so few of them are faster."""

    def __post_init__(self) -> None:
        if self.opponents_per_step < 0:
            raise ValueError(f"opponents_per_step is not negative, but {self.opponents_per_step}")
        for name in self.players:
            if "@" in name:
                raise ValueError(f"players: {name!r} has an @, which is for snapshots")

    def named(self, own: str) -> dict[str, PlayerConfig]:
        """The players, `default` by its name."""
        return {own if name == DEFAULT else name: each for name, each in self.players.items()}

    def known_anchors(self, opponents: Collection[str]) -> list[str]:
        """The anchors; raises ConfigError for one that is no opponent."""
        for name in self.anchors or ():
            if name not in opponents:
                raise ConfigError(
                    f"league.anchors: no opponent {name!r} in population.opponents; "
                    f"{nearest(name, opponents)}"
                )
        return list(opponents if self.anchors is None else self.anchors)

    def validate(self, learning: Collection[str], opponents: Collection[str]) -> None:
        """Raise ConfigError for a player or an anchor that is not there, or cannot be met.

        Args:
            learning: Policies that learn.
            opponents: Names in population.opponents.
        """
        anchors = self.known_anchors(opponents)
        for name in self.players:
            if name != DEFAULT and name not in learning:
                raise ConfigError(
                    f"league.players: no policy {name!r} that learns; {nearest(name, learning)}; "
                    "one without a role stands in population.extra_policies"
                )
        matchmakings = {name: each.matchmaking for name, each in self.players.items()}
        table = LeagueState(players=matchmakings, anchors=anchors, snapshots=[], payoff=Payoff())
        if not table.mains:
            raise ConfigError("league.players: all are exploiters, and there is nobody to exploit")
        for name, each in matchmakings.items():
            try:
                each.chances(name, table)
            except ValueError as error:
                raise ConfigError(f"league.players.{name}.matchmaking: {error}") from error

    def contested(self, arena: Arena, policy_of: Callable[[str], str]) -> tuple[list[str], str]:
        """The agents that change places, and the policy that they all belong to.

        Raises ConfigError where there are fewer than two, or of different policies.
        """
        known = arena.possible_agents
        for seat in self.seats:
            if seat not in known:
                raise ConfigError(f"league.seats: no agent {seat!r}; {nearest(seat, known)}")
        seats = list(self.seats or known)
        if len(set(seats)) < 2:
            raise ConfigError(f"league.seats: two agents are needed, and there is {seats}")
        owners = sorted({policy_of(seat.rpartition("_")[0]) for seat in seats})
        if len(owners) > 1:
            raise ConfigError(
                f"league.seats: they belong to different policies ({', '.join(owners)}); let their "
                "roles share one (population=shared), or name fewer seats"
            )
        if owners[0] != DEFAULT and {owners[0], DEFAULT} <= set(self.players):
            raise ConfigError(
                f"league.players: {DEFAULT} stands for {owners[0]!r}, whose seats these are, and "
                "both are named; keep one of them"
            )
        named = self.named(owners[0])
        if owners[0] not in named or not named[owners[0]].matchmaking.main:
            raise ConfigError(
                f"league.players: {owners[0]!r}, whose seats these are, is no main player; name it "
                f"or {DEFAULT}"
            )
        return seats, owners[0]
