"""The league: whom a learning policy plays, what became of it, and the snapshots among those.

A league stands between sampler and rollout. It seats every group, books its results, and keeps
copies of the policies as they were. How opponents are chosen is a `Matchmaking`; when a snapshot is
added or dropped is a rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from selfplay.league.ratings import Payoff

Chances: TypeAlias = dict[str, float]
"""Name to probability; they add up to 1, and there is at least one."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A copy of a player that does not learn."""

    player: str
    """Whose copy it is."""
    updates: int
    """How many updates the player had had."""

    @property
    def name(self) -> str:
        """What jobs call it."""
        return f"{self.player}@{self.updates}"


class Matchmaking(Protocol):
    """Whom a player meets. A pure function of the table, so that a resumed run is the same."""

    main: ClassVar[bool]
    """Whether the player is what the league is for, and no exploiter."""
    is_exploiter: ClassVar[bool]
    """Whether it is after the main players alone."""
    reset: float
    """The chance that it begins again at its first weights, when a snapshot of it has been made."""

    def chances(self, player: str, table: "LeagueState") -> Chances:
        """The chance of every opponent: a snapshot, an anchor, a player, or the player itself."""
        ...

    def targets(self, player: str, table: "LeagueState") -> Sequence[str]:
        """Whom the player has to beat before a snapshot of it is worth adding."""
        ...


@dataclass(kw_only=True)
class LeagueState:
    """What a league knows: who is there, and who beats whom."""

    players: Mapping[str, Matchmaking]
    """The policies that learn, by name."""
    anchors: Sequence[str]
    """Opponents that never change."""
    snapshots: list[Snapshot]
    """From the oldest to the newest."""
    payoff: Payoff
    """Results."""

    @property
    def mains(self) -> list[str]:
        """The players that are no exploiters."""
        return [name for name, each in self.players.items() if each.main]

    def past(self, *players: str) -> list[str]:
        """The snapshots of these players, or all, from the oldest to the newest."""
        return [each.name for each in self.snapshots if not players or each.player in players]

    def rates(self, player: str, opponents: Sequence[str]) -> list[float]:
        """How often the player wins against each; a draw is half a win."""
        return [self.payoff.rate(player, opponent) for opponent in opponents]
