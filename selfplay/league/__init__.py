"""The league: matches between learning policies, snapshots of them and fixed opponents.

A league is between the sampler and the rollout. It assigns a match to every group, counts the
results, and keeps snapshots of the policies. A `Matchmaking` chooses the opponents, a
`SnapshotTrigger` adds snapshots, and an `EvictionPolicy` drops them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from selfplay.league.ratings import Payoff

Chances: TypeAlias = dict[str, float]
"""Name to probability: at least one entry, with the sum 1."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A frozen copy of a player."""

    player: str
    """Name of the player that was copied."""
    updates: int
    """Number of updates of the player when it was copied."""

    @property
    def name(self) -> str:
        """Name of the snapshot in a `policy_map`."""
        return f"{self.player}@{self.updates}"


class Matchmaking(Protocol):
    """Chooses opponents. The choice depends only on the league's state (`table`), so that a resumed
    run has the same matches."""

    main: ClassVar[bool]
    """True for main players, which the league trains; False for exploiters of their weaknesses."""
    exploits_mains_only: ClassVar[bool]
    """True for players that exploit only the main players."""
    reset: float
    """Probability of a reset to the initial weights after each new snapshot of the player."""

    def chances(self, player: str, table: "LeagueState") -> Chances:
        """Return the probability of each opponent: a snapshot, an anchor, a player or itself."""
        ...

    def targets(self, player: str, table: "LeagueState") -> Sequence[str]:
        """Return the opponents that the player should beat before it gets a new snapshot."""
        ...


@dataclass(kw_only=True)
class LeagueState:
    """The state of a league: its players, anchors, snapshots and results."""

    players: Mapping[str, Matchmaking]
    """Matchmaking of each learning policy, by name."""
    anchors: Sequence[str]
    """Names of opponents that never change."""
    snapshots: list[Snapshot]
    """Snapshots from the oldest to the newest."""
    payoff: Payoff
    """Results of all pairs."""

    @property
    def mains(self) -> list[str]:
        """Names of the players that are not exploiters."""
        return [name for name, each in self.players.items() if each.main]

    def past(self, *players: str) -> list[str]:
        """Return the names of the snapshots of `players`, oldest first; of all players if none is
        given."""
        return [each.name for each in self.snapshots if not players or each.player in players]

    def rates(self, player: str, opponents: Sequence[str]) -> list[float]:
        """Return the player's win rate against each opponent; a tie is half a win."""
        return [self.payoff.rate(player, opponent) for opponent in opponents]
