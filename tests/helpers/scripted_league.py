"""A league of a scripted game, with snapshots that are only names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from selfplay.arena import Arena
from selfplay.engines.scripted import ScriptedEngine
from selfplay.league import Matchmaking, Snapshot
from selfplay.league.config import LeagueConfig, PlayerConfig
from selfplay.league.league import League
from selfplay.league.matchmaking import PFSP, Anchors, Current, MixedMatchmaking
from selfplay.league.ratings import Elo, Payoff
from selfplay.league.snapshots import EveryNUpdates, EvictOldest
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn
from selfplay.types import Episode, Task
from tests.helpers.builders import episode, turn
from tests.helpers.populations import population

SEATS = ("player_0", "player_1")


@dataclass
class Names:
    """Snapshots that are only names."""

    policies: Mapping[str, Any]
    there: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)

    def add(self, snapshot: Snapshot) -> None:
        assert snapshot.name not in self.there
        self.there.append(snapshot.name)

    def remove(self, name: str) -> None:
        self.there.remove(name)

    def rest(self) -> None:
        """Do nothing, because names use no memory."""

    def begin_again(self, player: str) -> None:
        self.again.append(player)

    def load(self, place: Path, snapshots: Sequence[Snapshot]) -> None:
        self.there = [each.name for each in snapshots]


class Played:
    """A zero-sum rollout: the pay of `player_0` is a function of both policies."""

    def __init__(self, pay: Callable[[str, str], float] = lambda first, second: 1.0) -> None:
        self.specs: list[EpisodeSpec] = []
        self.pay = pay

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        self.specs += specs
        return [self._played(spec) for spec in specs]

    def _played(self, spec: EpisodeSpec) -> Episode:
        first, second = (spec.policy_map.get(seat, "base") for seat in SEATS)
        paid = self.pay(first, second)
        return episode(turn("player_0", paid, policy=first), turn("player_1", -paid, policy=second))


class Made:
    """A league with the objects that it is made of."""

    def __init__(
        self, matchmaking: Mapping[str, Matchmaking], *, every: int = 2, most: int = 3, **more: Any
    ) -> None:
        self.max_staleness = more.pop("max_staleness", 0)
        self.names = list(matchmaking)
        self.play = more.pop("play", None) or Played(
            **{k: more.pop(k) for k in ("pay",) if k in more}
        )
        arena = more.pop("arena", None) or Arena({"player": 2})
        policies = {name: SimpleNamespace(version=0) for name in matchmaking}
        self.snapshots = Names(policies)
        self.forgot: list[str] = []
        learners: Any = {
            name: SimpleNamespace(
                begin_again=lambda name=name: self.forgot.append(name),
                fetch_weights=lambda: None,
            )
            for name in matchmaking
        }
        players = {
            name: PlayerConfig(matchmaking=each, add=EveryNUpdates(updates=every))
            for name, each in matchmaking.items()
        }
        names: Any = self.snapshots
        self.league = League(
            LeagueConfig(
                players=players,
                drop=EvictOldest(most=most),
                payoff=Payoff(),
                ratings=Elo(),
                arena=arena,
                population=population(
                    arena.roles,
                    extra_policies=[name for name in matchmaking if name != "base"],
                    opponents=dict.fromkeys(("random", "perfect"), ScriptedEngine({})),
                ),
                **more,
            ),
            snapshots=names,
            learners=learners,
            learning=lambda step: self.learns(step),
            seed=0,
            max_staleness=self.max_staleness,
        )
        self.learns: Callable[[int], Sequence[str]] = lambda step: self.names
        self.run: RolloutFn = self.play

    def step(self, number: int, *, groups: int = 8, size: int = 2) -> dict[str, float]:
        """Play a step of `groups` groups. Every player that learns makes one update."""
        self.begin(number)
        self.run(specs(number, groups, size))
        return self.end()

    def begin(self, number: int, learning: Sequence[str] | None = None) -> None:
        """Begin a step in which all players learn, or those of `learning`."""
        if learning is not None:
            self.learns = lambda step: learning
        self.league.begin_step(number)
        self.run = self.league.wrap(number, self.play)

    def end(self) -> dict[str, float]:
        """Update the players that learn and end the step."""
        for name in self.learns(self.league.step):
            self.snapshots.policies[name].version += 1
        return self.league.end_step()


def specs(step: int, groups: int, size: int = 2) -> list[EpisodeSpec]:
    return [
        EpisodeSpec(task=Task(id="game"), seed=100_000 * step + group, member=member)
        for group in range(groups)
        for member in range(size)
    ]


ALL_THREE = MixedMatchmaking(
    ways={"now": Current(), "past": PFSP(), "fixed": Anchors()},
    weights={"now": 1, "past": 1, "fixed": 1},
)
