"""The task buffer: every verified task that self-play made, with where it came from."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from selfplay.types import Task, from_json, to_json


@dataclass(frozen=True, kw_only=True)
class BufferEntry:
    """A task in the buffer."""

    number: int
    """In order of arrival, from 0; never reused."""
    task: Task
    """What can be played."""
    step: int
    """When it came; -1 for a seed."""
    author: str = "seed"
    """Policy and version that proposed it."""
    parents: tuple[int, ...] = ()
    """Numbers of the entries that its author was shown."""
    attempts: int = 0
    """Verified attempts so far."""
    solved: int = 0
    """Of them, the correct ones."""


@dataclass(kw_only=True)
class TaskBuffer:
    """Tasks by type, without duplicates, at most `capacity` of each type (the oldest leave).

    Ids are remembered for ever with the number that the task got, so that "was this task known
    when the buffer held n tasks" has an answer that never changes: an episode paid by it can be
    replayed.
    """

    capacity: int = 16_384
    """Entries per type (16,384 in 2505.03335)."""
    entries: dict[str, list[BufferEntry]] = field(default_factory=dict)
    """By type, oldest first."""
    first_seen: dict[str, int] = field(default_factory=dict)
    """Task id to its number."""
    size: int = 0
    """Tasks ever added: the next number."""

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"task buffer: capacity is at least 1, not {self.capacity}")

    def add(
        self, task: Task, *, step: int, author: str = "seed", parents: Sequence[int] = ()
    ) -> bool:
        """Add a task; False if its id is known."""
        if task.id in self.first_seen:
            return False
        entry = BufferEntry(
            number=self.size, task=task, step=step, author=author, parents=tuple(parents)
        )
        self.first_seen[task.id] = entry.number
        self.size += 1
        kept = self.entries.setdefault(task.type, [])
        kept.append(entry)
        del kept[: max(0, len(kept) - self.capacity)]
        return True

    def known(self, task_id: str, before: int) -> bool:
        """Whether the task was among the first `before` tasks."""
        return self.first_seen.get(task_id, before) < before

    def count(self, kind: str) -> int:
        """Entries of a type."""
        return len(self.entries.get(kind, ()))

    def sample(
        self,
        kinds: Sequence[str],
        count: int,
        rng: Random,
        *,
        band: tuple[float, float] | None = None,
    ) -> list[BufferEntry]:
        """Uniformly drawn different entries of these types; fewer if there are fewer.

        Uniform, because weighting by recency collapsed diversity (2505.03335). With `band`, of
        those that were attempted and whose solve rate lies in it, ends included.
        """
        pool = [entry for kind in kinds for entry in self.entries.get(kind, ())]
        if band:
            pool = [e for e in pool if e.attempts and band[0] <= e.solved / e.attempts <= band[1]]
        return rng.sample(pool, min(count, len(pool)))

    def record(self, task: Task, *, attempts: int, solved: int) -> None:
        """Book verified attempts at a task; a task that has left the buffer is passed over."""
        if task.id not in self.first_seen:
            return
        kept, number = self.entries.get(task.type, []), self.first_seen[task.id]
        place = bisect_left(kept, number, key=lambda entry: entry.number)
        if place < len(kept) and kept[place].number == number:
            entry = kept[place]
            kept[place] = replace(
                entry, attempts=entry.attempts + attempts, solved=entry.solved + solved
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain JSON data."""
        return {
            "size": self.size,
            "first_seen": dict(self.first_seen),
            "entries": {
                kind: [to_json(entry) for entry in kept] for kind, kept in self.entries.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, in place: arenas hold this very buffer."""
        self.size = int(state["size"])
        self.first_seen = dict(state["first_seen"])
        self.entries = {
            kind: [from_json(BufferEntry, entry) for entry in kept]
            for kind, kept in state["entries"].items()
        }
