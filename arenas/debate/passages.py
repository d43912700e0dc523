"""Doors and passages: questions with answers that are hard to find and easy to check.

From each door, a passage of two steps leads to a place: "2c" from door 2 to c, "cG" from c to G. A
question gives the steps of all passages in a random order and asks for the first step of the way to
a place: "2ccG1aaB... -> G". A reader who writes a passage down from its door has to choose the door
first, without knowing the right one (the path-star task of 2403.06963). The written passage shows
where it leads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from arenas.splits import Split
from selfplay.rng import derive
from selfplay.types import Task

GOAL, YES, NO = " -> ", " yes", " no"
WAYS, ENDS = "abcdefgh", "ABCDEFGH"


@dataclass(frozen=True, kw_only=True)
class Passages:
    """Question about a set of doors with its passages. Made by `passages`."""

    question: str
    """Shuffled steps, and the place that is asked for."""
    paths: Mapping[str, str]
    """First step to second step of each passage, "2c" to "cG"; doors in order."""
    goal: str
    """End of one of the passages."""

    @property
    def answer(self) -> str:
        """First step of the passage that leads to the goal."""
        return next(first for first, second in self.paths.items() if second[-1] == self.goal)

    def followed(self, first: str) -> str:
        """Return a passage with its comparison to the goal: "2ccG yes"."""
        return first + self.paths[first] + (YES if first == self.answer else NO)


def passages(rng: Random, *, doors: int = 4) -> Passages:
    """Return a random question with `doors` doors."""
    if not 2 <= doors <= len(WAYS):
        raise ValueError(f"doors must lie between 2 and {len(WAYS)}, not {doors}")
    ways, ends = rng.sample(WAYS, doors), rng.sample(ENDS, doors)
    steps = [
        (f"{door}{way}", f"{way}{end}")
        for door, (way, end) in enumerate(zip(ways, ends, strict=True), 1)
    ]
    shuffled = [step for both in steps for step in both]
    rng.shuffle(shuffled)
    goal = rng.choice(ends)
    return Passages(
        question="".join(shuffled) + GOAL + goal,
        paths=dict(steps),
        goal=goal,
    )


def shown(rng: Random, *, doors: int = 4) -> Passages:
    """Return a random question that is not held out, for demonstrations."""
    while True:
        found = passages(rng, doors=doors)
        if not is_held_out(found.question):
            return found


def all_steps(*, doors: int = 4) -> list[str]:
    """Return every step that a question with `doors` doors can contain."""
    steps = [f"{door}{way}" for door in range(1, doors + 1) for way in WAYS]
    return [*steps, *(f"{way}{end}" for way in WAYS for end in ENDS)]


def is_held_out(question: str) -> bool:
    """Return True for one question in five, chosen by a hash of its text."""
    return derive("passages", question) % 5 == 0


def questions(*, count: int, split: Split = "train", doors: int = 4, seed: int = 0) -> list[Task]:
    """Return `count` different questions; the two splits share no question.

    The payload has `question`, `answer` and `wrong`, the first step of another passage.

    Args:
        count: Number of tasks.
        split: train or held_out.
        doors: Number of doors of a question.
        seed: Seed of the draw.
    """
    if count < 1:
        raise ValueError("count is at least 1")
    rng = Random(derive(seed, "passages", split))
    found: dict[str, Task] = {}
    while len(found) < count:
        drawn = passages(rng, doors=doors)
        if is_held_out(drawn.question) == (split == "held_out"):
            found[drawn.question] = Task(
                id=f"passages-{drawn.question}", type="passages", payload=_payload(drawn, rng)
            )
    return list(found.values())


def _payload(drawn: Passages, rng: Random) -> dict[str, Any]:
    wrong = rng.choice([first for first in drawn.paths if first != drawn.answer])
    return {"question": drawn.question, "answer": drawn.answer, "wrong": wrong}
