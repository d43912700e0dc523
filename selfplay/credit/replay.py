"""Replays of recorded episodes with other moves."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from selfplay.errors import SelfplayError
from selfplay.types import Action, Episode, Status, Task

Moves: TypeAlias = Mapping[str, Sequence[Action | None]]
"""Each agent's actions, in order."""


class WithRoles(Protocol):
    """The part of an arena that says how many agents play; `selfplay.Arena` implements it."""

    roles: Mapping[str, int]
    """Largest number of agents of each role."""


class ReplayedArena(Protocol):
    """The part of an arena that credit methods need; `selfplay.Arena` implements it."""

    finished: bool
    """True after the end of the episode."""
    paid: Mapping[str, float]
    """Return of each agent so far."""

    @property
    def stage(self) -> tuple[str, ...]:
        """Agents that move next."""
        ...

    def begin(self, task: Task, seed: int) -> None:
        """Start an episode."""
        ...

    def play_stage(self, actions: Mapping[str, Action | None]) -> Mapping[str, float]:
        """Play one stage."""
        ...


class MoveReplayer:
    """Replays episodes from their task and seed, one after the other.

    The arena's random draws equal the recorded ones as long as the arena makes them in the same
    order. Services are called again: a replay of an arena that runs programs costs as much as
    playing it. The result is the arena's own rewards, without shaping.
    """

    def __init__(
        self, arena: Callable[[], ReplayedArena], *, limit: int, default: Action | None = None
    ) -> None:
        """Args:
        arena: Makes a fresh arena.
        limit: Number of stages after which a replay is cut.
        default: Action of an agent that has no recorded moves left.
        """
        self.arena, self.limit, self.default = arena, limit, default
        self.counts: Counter[str] = Counter()

    def metrics(self) -> dict[str, float]:
        """Return the number of replays since the last `counts.clear()`, of those in which an agent
        ran out of moves, of those cut at the limit and of those in which the arena broke."""
        names = ("replays", "replays_beyond_moves", "replays_cut", "replays_failed")
        return {name: float(self.counts[name]) for name in names}

    def paid(self, episode: Episode, moves: Moves) -> Mapping[str, float] | None:
        """Return every agent's total pay for these moves; None if the arena broke.

        A truncated record is replayed for as many stages as it has.
        """
        limit, truncated = self.limit, episode.status is Status.TRUNCATED
        if truncated:
            limit = min(limit, len({turn.stage for turn in episode.turns}))
        left = {agent: list(reversed(actions)) for agent, actions in moves.items()}
        arena, stages, beyond = self.arena(), 0, False
        try:
            arena.begin(episode.task, episode.seed)
            while not arena.finished and stages < limit:
                beyond |= not all(map(left.get, arena.stage))
                arena.play_stage(
                    {a: left[a].pop() if left.get(a) else self.default for a in arena.stage}
                )
                stages += 1
        except SelfplayError:
            raise
        except Exception:  # an error of the arena is counted, as in a rollout
            self.counts.update(("replays", "replays_failed"))
            return None
        self.counts["replays"] += 1
        self.counts["replays_beyond_moves"] += beyond
        self.counts["replays_cut"] += not arena.finished and not truncated
        return dict(arena.paid)


def stages_of(episode: Episode) -> list[dict[str, Action | None]]:
    """Return the recorded actions of each stage by agent, in the order of the stages."""
    stages: dict[int, dict[str, Action | None]] = {}
    for turn in episode.turns:
        stages.setdefault(turn.stage, {})[turn.agent] = turn.action
    return [actions for _, actions in sorted(stages.items())]


def actions_of(episode: Episode) -> dict[str, list[Action | None]]:
    """Return each agent's actions in order."""
    actions: dict[str, list[Action | None]] = {}
    for turn in episode.moves():
        actions.setdefault(turn.agent, []).append(turn.action)
    return actions
