"""The settings of a league, and their validation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from selfplay.arena import Arena
from selfplay.errors import ConfigError, nearest
from selfplay.league import LeagueState, Matchmaking
from selfplay.league.ratings import Payoff, Ratings
from selfplay.league.snapshots import EvictionPolicy, SnapshotTrigger
from selfplay.models.population import Population
from selfplay.types import role_of

DEFAULT = "default"
"""Placeholder for the name of the policy that plays the league's seats."""


@dataclass(frozen=True, kw_only=True)
class PlayerConfig:
    """The settings of one learning policy of the league."""

    matchmaking: Matchmaking
    """Rule that chooses its opponents."""
    add: SnapshotTrigger
    """Rule that decides when a snapshot of the policy is added."""


@dataclass(frozen=True, kw_only=True)
class LeagueConfig:
    """Settings of a league: its players, opponents, snapshots and results.

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
    """Rating of each policy, such as Elo."""
    arena: Arena
    """Arena of training; the program provides it."""
    population: Population
    """Policies of the run; the program provides them."""
    anchors: Sequence[str] | None = None
    """Names from `population.opponents` that the league uses; None: all."""
    seats: Sequence[str] = ()
    """Agents that the player or its opponent plays; empty: all agents. Name them if the arena has
    other agents too, such as a judge."""
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
        if self.own in self.population.opponents:
            raise ConfigError(
                f"league.seats: they are played by {self.own!r}, an opponent, which has no "
                "snapshots; give their role a policy (learn: false freezes it), and name the "
                "opponent in league.anchors"
            )
        self._check_players()

    @property
    def own(self) -> str:
        """Name of the policy of the roles of all contested agents."""
        return self._contested[1]

    @property
    def contested(self) -> list[str]:
        """Agents that the player or its opponent plays."""
        return self._contested[0]

    @property
    def anchor_names(self) -> list[str]:
        """Names of the anchors."""
        return list(self.population.opponents if self.anchors is None else self.anchors)

    def named(self) -> dict[str, PlayerConfig]:
        """Return the players, with `default` replaced by the policy's name."""
        return _named(self.players, self.own)

    def _check_players(self) -> None:
        """Raise ConfigError for an unknown player or anchor, or for impossible matchmaking."""
        opponents = self.population.opponents
        for name in self.anchors or ():
            if name not in opponents:
                raise ConfigError(
                    f"league.anchors: no opponent {name!r} in population.opponents; "
                    f"{nearest(name, opponents)}"
                )
        learning = self.population.learning
        for name in self.players:
            if name != DEFAULT and name not in learning:
                raise ConfigError(
                    f"league.players: no policy {name!r} that learns; {nearest(name, learning)}; "
                    "a policy without a role must be in population.extra_policies"
                )
        matchmakings = {name: each.matchmaking for name, each in self.players.items()}
        table = LeagueState(
            players=matchmakings, anchors=self.anchor_names, snapshots=[], payoff=Payoff()
        )
        for name, each in matchmakings.items():
            try:
                each.chances(name, table)
            except ValueError as error:
                raise ConfigError(f"league.players.{name}.matchmaking: {error}") from error

    @cached_property
    def _contested(self) -> tuple[list[str], str]:
        """Agents that the player or its opponent plays, and the policy that owns all of them.

        Raises ConfigError for fewer than two agents, or agents of different policies.
        """
        known = self.arena.possible_agents
        for seat in self.seats:
            if seat not in known:
                raise ConfigError(f"league.seats: no agent {seat!r}; {nearest(seat, known)}")
        seats = list(self.seats or known)
        if len(set(seats)) < 2:
            raise ConfigError(f"league.seats: two agents are needed, and there is {seats}")
        owners = sorted({self.population.policy_of(role_of(seat)) for seat in seats})
        if len(owners) > 1:
            fewer = ", or name in league.seats only agents of one policy" if len(seats) > 2 else ""
            raise ConfigError(
                f"league: the agents {', '.join(seats)} belong to different policies "
                f"({', '.join(owners)}); let their roles share one (population=shared){fewer}"
            )
        if owners[0] != DEFAULT and {owners[0], DEFAULT} <= set(self.players):
            raise ConfigError(
                f"league.players: {DEFAULT} stands for {owners[0]!r}, the policy of the league's "
                "seats, and both are named; keep one of them"
            )
        named = _named(self.players, owners[0])
        if owners[0] not in named or not named[owners[0]].matchmaking.main:
            raise ConfigError(
                f"league.players: {owners[0]!r}, the policy of the league's seats, is not a main "
                f"player; add {owners[0]!r} or {DEFAULT}, with the matchmaking of a main player"
            )
        return seats, owners[0]


def _named(players: Mapping[str, PlayerConfig], own: str) -> dict[str, PlayerConfig]:
    return {own if name == DEFAULT else name: each for name, each in players.items()}
