"""The settings of a league, and their validation."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from selfplay.arena import Arena
from selfplay.errors import ConfigError, nearest
from selfplay.league import LeagueState, Matchmaking
from selfplay.league.ratings import Payoff, Ratings
from selfplay.league.snapshots import EvictionPolicy, SnapshotTrigger
from selfplay.types import role_of

DEFAULT = "default"
"""Placeholder for the policy that plays the league's seats."""


@dataclass(frozen=True, kw_only=True)
class PlayerConfig:
    """The settings of one learning policy of the league."""

    matchmaking: Matchmaking
    """Rule that chooses its opponents."""
    add: SnapshotTrigger
    """Rule that decides when a snapshot of the policy is added."""


@dataclass(frozen=True, kw_only=True)
class LeagueConfig:
    """Players, opponents and memory of a league.

    Groups are assigned to the players in turn. Only the assigned player learns from a group: from
    one seat, with an opponent in all other seats, or from all seats if it plays against itself.
    """

    players: Mapping[str, PlayerConfig]
    """Settings by policy name; `default` is the policy of the league's seats."""
    drop: EvictionPolicy
    """Rule that drops snapshots, with their maximum number."""
    payoff: Payoff
    """Results of all pairs."""
    ratings: Ratings
    """One strength per policy."""
    anchors: Sequence[str] | None = None
    """Names from `population.opponents` that the league uses; None: all."""
    seats: Sequence[str] = ()
    """Agents that change seats, if the arena has others too (a judge); empty: all agents."""
    opponents_per_step: int = 0
    """Number of opponents that a player draws per step, used in turn by its groups; 0: one per
    group. Opponents are sampled in passes of their own, unless they are adapters over one base, so
    fewer opponents are faster."""

    def __post_init__(self) -> None:
        if self.opponents_per_step < 0:
            raise ValueError(f"opponents_per_step must not be negative: {self.opponents_per_step}")
        for name in self.players:
            if "@" in name:
                raise ValueError(f"players: {name!r} has an @, which is reserved for snapshots")
        if not any(each.matchmaking.main for each in self.players.values()):
            raise ValueError("players: all are exploiters; add a main player to exploit")

    def named(self, own: str) -> dict[str, PlayerConfig]:
        """Return the players, with `default` replaced by the policy's name."""
        return {own if name == DEFAULT else name: each for name, each in self.players.items()}

    def known_anchors(self, opponents: Collection[str]) -> list[str]:
        """Return the anchors; raises ConfigError for a name that is no opponent."""
        for name in self.anchors or ():
            if name not in opponents:
                raise ConfigError(
                    f"league.anchors: no opponent {name!r} in population.opponents; "
                    f"{nearest(name, opponents)}"
                )
        return list(opponents if self.anchors is None else self.anchors)

    def validate(self, learning: Collection[str], opponents: Collection[str]) -> None:
        """Raise ConfigError for an unknown player or anchor, or for impossible matchmaking.

        Args:
            learning: Names of the policies that learn.
            opponents: Names in `population.opponents`.
        """
        anchors = self.known_anchors(opponents)
        for name in self.players:
            if name != DEFAULT and name not in learning:
                raise ConfigError(
                    f"league.players: no policy {name!r} that learns; {nearest(name, learning)}; "
                    "a policy without a role must be in population.extra_policies"
                )
        matchmakings = {name: each.matchmaking for name, each in self.players.items()}
        table = LeagueState(players=matchmakings, anchors=anchors, snapshots=[], payoff=Payoff())
        for name, each in matchmakings.items():
            try:
                each.chances(name, table)
            except ValueError as error:
                raise ConfigError(f"league.players.{name}.matchmaking: {error}") from error

    def contested(self, arena: Arena, policy_of: Callable[[str], str]) -> tuple[list[str], str]:
        """Return the agents that change seats, and the policy that plays all of them.

        Raises ConfigError for fewer than two agents, or agents of different policies.
        """
        known = arena.possible_agents
        for seat in self.seats:
            if seat not in known:
                raise ConfigError(f"league.seats: no agent {seat!r}; {nearest(seat, known)}")
        seats = list(self.seats or known)
        if len(set(seats)) < 2:
            raise ConfigError(f"league.seats: two agents are needed, and there is {seats}")
        owners = sorted({policy_of(role_of(seat)) for seat in seats})
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
