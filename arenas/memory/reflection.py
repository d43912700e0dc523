"""Choices of memories by the reflectors of the memory arena, and their pay."""

from collections.abc import Collection, Sequence
from typing import Literal

from arenas.memory.bank import MemoryEntry
from arenas.memory.json_list import read_list
from selfplay.credit.rewards import mean

ReflectorPay = Literal["citations", "right_citations", "outcome"]


class ReflectionError(ValueError):
    """Invalid action of a reflector; the argument is the name of the reason."""


def read_choice(action: str | None, *, known: Collection[str], most: int) -> list[str]:
    """Return the ids in a reflector's JSON, {"memories": ["3", ...]}, the best one first.

    Raises ReflectionError: malformed (no action), not_json, bad_form (other keys, or ids that are
    no strings or named twice), unknown_id (not among `known`), several_memories (more than `most`).
    """
    named = read_list(action, "memories", ReflectionError)
    if not all(isinstance(name, str) for name in named):
        raise ReflectionError("bad_form")
    if len({*named}) < len(named):
        raise ReflectionError("bad_form")
    if not {*named} <= set(known):
        raise ReflectionError("unknown_id")
    if len(named) > most:
        raise ReflectionError("several_memories")
    return named


class MemoryReflection:
    """The choices of all reflectors of an episode, and their rewards."""

    def __init__(self, *, most: int, pay: ReflectorPay) -> None:
        """`most` is the maximum number of memories of a choice, `pay` the rule of the reward."""
        self.most, self.rule = most, pay
        self.chosen: dict[str, list[MemoryEntry]] = {}
        """Memories by reflector, until the answers are given."""
        self.invalid: set[str] = set()
        """Reflectors with an invalid action, for which the retriever's first entries are used."""
        self.choices = self.malformed = self.kept = self.cited = 0

    def take(self, reflector: str, action: str | None, entries: Sequence[MemoryEntry]) -> None:
        """Store the choice of a reflector from the retrieved entries.

        Raises ReflectionError for an invalid action; the choice is then the retriever's first
        entries.
        """
        self.choices += 1
        by_id = {entry.id: entry for entry in entries}
        try:
            named = read_choice(action, known=by_id, most=self.most)
        except ReflectionError:
            self.malformed += 1
            self.invalid.add(reflector)
            self.chosen[reflector] = list(entries[: self.most])
            raise
        self.chosen[reflector] = [by_id[name] for name in named]

    def earned(self, reflector: str, cited: Collection[str], scored: float) -> float:
        """Return a reflector's pay once its question is answered, and drop its choice.

        `cited` are the ids that the answer names, and `scored` is the outcome of the answer.
        """
        chosen, invalid = self.chosen.pop(reflector), reflector in self.invalid
        self.invalid.discard(reflector)
        useful = [entry.id in cited for entry in chosen]
        self.kept += len(chosen)
        self.cited += sum(useful)
        if invalid:
            return 0.0
        if self.rule == "outcome":
            return scored
        if self.rule == "right_citations" and not scored:
            useful = [False] * len(chosen)
        return mean([1.0 if each else -1.0 for each in useful]) if chosen else 0.0

    def metrics(self) -> dict[str, float]:
        """Return the mean number of memories per choice, the fraction of chosen memories that
        answers cite, and the fraction of invalid actions."""
        return {
            "memories_kept": self.kept / self.choices,
            "kept_cited": self.cited / max(self.kept, 1),
            "malformed_reflections": self.malformed / self.choices,
        }
