"""Replay: what an arena pays where the agents move otherwise than a record says."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from selfplay.errors import SelfplayError
from selfplay.types import Action, Episode, Status, Task

Moves: TypeAlias = Mapping[str, Sequence[Action | None]]
"""What each agent does, in order."""


class ReplayedArena(Protocol):
    """What credit needs of an arena; `selfplay.Arena` is one."""

    finished: bool
    paid: Mapping[str, float]

    @property
    def stage(self) -> tuple[str, ...]:
        """The agents that move next."""
        ...

    def begin(self, task: Task, seed: int) -> None:
        """Start an episode."""
        ...

    def play_stage(self, actions: Mapping[str, Action | None]) -> Mapping[str, float]:
        """Play a stage."""
        ...


class MoveReplayer:
    """Replays episodes from their task and seed, one after the other.

    The arena's chance is that of the record as long as it is asked the same questions. Services
    are called again: a replay of an arena that runs programs costs what they cost. It pays what
    the arena pays; shaping, which no arena knows, has no part in it.
    """

    def __init__(
        self, arena: Callable[[], ReplayedArena], *, limit: int, default: Action | None = None
    ) -> None:
        """`arena` makes a fresh one; `limit` is the number of stages at which a replay is cut;
        `default` is what an agent does that is asked more often than it has moves."""
        self.arena, self.limit, self.default = arena, limit, default
        self.counts: Counter[str] = Counter()

    def metrics(self) -> dict[str, float]:
        """Replays since the last `counts.clear()`; those in which an agent ran out of moves, those
        cut at the limit and those in which the arena broke."""
        names = ("replays", "replays_beyond_moves", "replays_cut", "replays_failed")
        return {name: float(self.counts[name]) for name in names}

    def paid(self, episode: Episode, moves: Moves) -> Mapping[str, float] | None:
        """What every agent is paid in all if they do this; None where the arena broke.

        A record that was truncated is replayed for as many stages as it has.
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
        except Exception:  # the arena's own fault, as in a rollout: counted
            self.counts.update(("replays", "replays_failed"))
            return None
        self.counts["replays"] += 1
        self.counts["replays_beyond_moves"] += beyond
        self.counts["replays_cut"] += not arena.finished and not truncated
        return dict(arena.paid)


def actions_of(episode: Episode) -> dict[str, list[Action | None]]:
    """Each agent's actions in order."""
    found: dict[str, list[Action | None]] = {}
    for turn in episode.turns:
        found.setdefault(turn.agent, []).append(turn.action)
    return found
