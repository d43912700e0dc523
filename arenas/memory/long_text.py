"""Long text: one agent reads a text in parts, with a memory that each turn overwrites.

This is MemAgent's workflow (2507.02259). At every turn the agent sees the question, its memory and
the next part, and its completion is its new memory. After the last part it answers from the memory
alone. So the prompts stay short for a text of any length, and the agent has to decide what to keep.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.memory.colours import colour_texts
from arenas.questions.verifiers import Matches, Verifier, score_of, waits
from selfplay.arena import Arena
from selfplay.types import Action, Metric, Observation, Task, well_formed

READER = "reader_0"


class LongText(Arena):
    """A reader that is paid the score of its answer, at its last move."""

    name = "long_text_v0"
    roles = {"reader": 1}
    services: ClassVar[tuple[str, ...]] = ("verifier",)
    measures = {
        "accuracy": Metric(unit="fraction", better="higher"),
        "memory": Metric(unit="count"),
        "full": Metric(unit="fraction", better="lower"),
    }
    chief = ("accuracy",)

    def __init__(self, *, memory_length: int = 2000, verifier: Verifier | None = None) -> None:
        """Args:
        memory_length: Maximum characters of the memory; the rest of a longer one is cut off.
        verifier: Scores the answer; None: 1 if it has the meaning of the task's `answer`, else 0.
        """
        super().__init__()
        if memory_length < 0:
            raise ValueError(f"memory_length is at least 0, not {memory_length}")
        self.memory_length = memory_length
        self.verifier: Verifier = verifier or Matches()
        self.blocking = waits(self.verifier)

    def default_task(self, rng: Random) -> Task:
        """Return a short text about colours."""
        return colour_texts(count=1, parts=2, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Begin with an empty memory before the first part of the task's `parts`."""
        parts = task.payload.get("parts")
        if not isinstance(parts, list | tuple) or not parts:
            raise ValueError(f"task {task.id}: a text needs a list of one or more `parts`")
        self.question = str(task.payload["question"])
        self.parts = tuple(map(str, parts))
        self.read, self.memory = 0, ""
        self.lengths, self.cut = 0, 0

    def acting(self) -> Sequence[str]:
        """Return the reader."""
        return [READER]

    def view(self, agent: str) -> Observation:
        """Return the question, the memory, and the next part if there is one."""
        left = self.read < len(self.parts)
        part = self.parts[self.read] if left else ""
        return Observation(
            text=" | ".join([self.question, self.memory, *([part] if left else [])]),
            fields={
                "question": self.question,
                "memory": self.memory,
                "part": part,
                "number": self.read + 1 if left else 0,
                "parts": len(self.parts),
                "memory_length": self.memory_length,
            },
        )

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Overwrite the memory, or score the answer. A move that did not parse leaves the memory
        unchanged, and as an answer has the score 0."""
        said = actions[READER]
        if self.read == len(self.parts):
            payload = {**self.task.payload, "question": self.question}
            score = 0.0 if said is None else score_of(self.verifier, said, payload)
            self.pay(READER, score)
            parts = len(self.parts)
            self.measure(accuracy=score, memory=self.lengths / parts, full=self.cut / parts)
            self.finish()
            return
        self.read += 1
        if said is not None:
            self.memory = well_formed(said[: self.memory_length])
            self.cut += len(said) > self.memory_length
        self.lengths += len(self.memory)


def raw_env(**settings: Any) -> LongText:
    """Return the arena without a wrapper."""
    return LongText(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
