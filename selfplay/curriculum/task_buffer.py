"""The task buffer: all verified tasks of self-play, with their origin."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from selfplay.types import Task, from_json, to_json


@dataclass(frozen=True, kw_only=True)
class BufferEntry:
    """A task in the buffer, with its origin and its solve rate."""

    number: int
    """Number in order of arrival, from 0; never reused."""
    task: Task
    """Task to play."""
    step: int
    """Step at which the task was added; negative for a task from before training: a seed (-1) or a
    proposal of a gathering round (-1, -2, ...)."""
    author: str = "seed"
    """Policy and version that proposed it."""
    parents: tuple[int, ...] = ()
    """Numbers of the entries that its author was shown."""
    attempts: int = 0
    """Number of verified attempts so far."""
    solved: int = 0
    """Number of correct attempts among them."""


@dataclass(kw_only=True)
class TaskBuffer:
    """Tasks by type, without duplicates, at most `capacity` of each type (the oldest are removed).

    `ProposalCurriculum` adds tasks; arenas ask whether a task is known. The id and the number of a
    task are kept after the task is removed. So the question whether a task was among the first n
    tasks always has the same answer, and an episode whose rewards depend on it can be replayed.
    """

    capacity: int = 16_384
    """Largest number of entries per type (16,384 in 2505.03335)."""
    entries: dict[str, list[BufferEntry]] = field(default_factory=dict)
    """Entries by type, oldest first."""
    first_seen: dict[str, int] = field(default_factory=dict)
    """Task id to the number of the task."""
    size: int = 0
    """Number of tasks ever added, which is the next task's number."""

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"task buffer: capacity is at least 1, not {self.capacity}")

    def add(
        self, task: Task, *, step: int, author: str = "seed", parents: Sequence[int] = ()
    ) -> bool:
        """Add a task. Returns False if its id is known."""
        if task.id in self.first_seen:
            return False
        entry = BufferEntry(
            number=self.size, task=task, step=step, author=author, parents=tuple(parents)
        )
        self.first_seen[task.id] = entry.number
        self.size += 1
        entries = self.entries.setdefault(task.type, [])
        entries.append(entry)
        del entries[: max(0, len(entries) - self.capacity)]
        return True

    def known(self, task_id: str, before: int) -> bool:
        """Return True if the task was among the first `before` tasks."""
        return self.first_seen.get(task_id, before) < before

    def count(self, kind: str) -> int:
        """Return the number of entries of a type."""
        return len(self.entries.get(kind, ()))

    def sample(
        self,
        kinds: Sequence[str],
        count: int,
        rng: Random,
        *,
        band: tuple[float, float] | None = None,
    ) -> list[BufferEntry]:
        """Return uniformly drawn different entries of these types; fewer if there are fewer.

        The draw is uniform, because weighting by recency collapsed diversity (2505.03335). With
        `band`, entries are drawn that were attempted and whose solve rate lies in it, ends
        included.
        """
        pool = [entry for kind in kinds for entry in self.entries.get(kind, ())]
        if band:
            pool = [e for e in pool if e.attempts and band[0] <= e.solved / e.attempts <= band[1]]
        return rng.sample(pool, min(count, len(pool)))

    def record(self, task: Task, *, attempts: int, solved: int) -> None:
        """Count verified attempts at a task; a task that has left the buffer is ignored."""
        if task.id not in self.first_seen:
            return
        entries, number = self.entries.get(task.type, []), self.first_seen[task.id]
        index = bisect_left(entries, number, key=lambda entry: entry.number)
        if index < len(entries) and entries[index].number == number:
            entry = entries[index]
            entries[index] = replace(
                entry, attempts=entry.attempts + attempts, solved=entry.solved + solved
            )

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as plain JSON data."""
        return {
            "size": self.size,
            "first_seen": dict(self.first_seen),
            "entries": {
                kind: [to_json(entry) for entry in entries]
                for kind, entries in self.entries.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, in place: arenas hold this very buffer."""
        self.size = int(state["size"])
        self.first_seen = dict(state["first_seen"])
        self.entries = {
            kind: [from_json(BufferEntry, entry) for entry in entries]
            for kind, entries in state["entries"].items()
        }
