"""Doors and passages: questions whose answer is hard to find and easy to check.

Behind each door a passage of two steps leads to a place: "2c" from door 2 to c, "cG" from c to G. A
question gives the steps of all passages in a random order and asks with which one the way to a
place begins: "2ccG1aaB... -> G". Whoever writes a passage down from its door on has to choose the
door first, and cannot know which one (the path-star task of 2403.06963); that a passage which is
written down leads there is plain to see.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from selfplay.rng import derive
from selfplay.types import Task

Split = Literal["train", "held_out"]
GOAL, YES, NO = " -> ", " yes", " no"
WAYS, ENDS = "abcdefgh", "ABCDEFGH"


@dataclass(frozen=True, kw_only=True)
class Passages:
    """What is behind the doors."""

    question: str
    """The steps, shuffled, and the place that is asked for."""
    paths: Mapping[str, str]
    """The first step of each passage to its second one, "2c" to "cG"; doors in order."""
    goal: str
    """The place at the end of one of them."""

    @property
    def answer(self) -> str:
        """The first step of the passage that leads to the goal."""
        return next(first for first, second in self.paths.items() if second[-1] == self.goal)

    def followed(self, first: str) -> str:
        """A passage written down and compared with the goal: "2ccG yes"."""
        return first + self.paths[first] + (YES if first == self.answer else NO)


def passages(rng: Random, *, doors: int = 4) -> Passages:
    """A question of so many doors."""
    if not 2 <= doors <= len(WAYS):
        raise ValueError(f"doors lies between 2 and {len(WAYS)}, not {doors}")
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
    """A question that is not held out, for demonstrations."""
    while True:
        found = passages(rng, doors=doors)
        if not is_held_out(found.question):
            return found


def all_steps(*, doors: int = 4) -> list[str]:
    """Every step that a question of so many doors may have."""
    steps = [f"{door}{way}" for door in range(1, doors + 1) for way in WAYS]
    return [*steps, *(f"{way}{end}" for way in WAYS for end in ENDS)]


def is_held_out(question: str) -> bool:
    """One question in five, by its own text."""
    return derive("passages", question) % 5 == 0


def questions(*, count: int, split: Split = "train", doors: int = 4, seed: int = 0) -> list[Task]:
    """`count` different questions; no question of one split stands in the other.

    The payload has `question`, `answer` and `wrong`, the first step of another passage.
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
