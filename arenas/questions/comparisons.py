"""Questions about the order of three numbers, in plain English, for arenas that discuss an answer.

A hash of a question's three numbers, in any order, decides if the question is held out.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from arenas.splits import Split
from selfplay.rng import derive
from selfplay.types import Task

KINDS = {
    "largest": "Which number is the largest: {}, {} or {}?",
    "smallest": "Which number is the smallest: {}, {} or {}?",
    "middle": "Which number is in the middle by size: {}, {} or {}?",
}
"""Text of a question, by its kind."""


def is_held_out(numbers: Sequence[int]) -> bool:
    """Return True for one set of numbers in five, chosen by a hash."""
    return derive("comparison", *map(str, sorted(numbers))) % 5 == 0


def comparison(
    rng: Random, *, kinds: Sequence[str], smallest: int, largest: int, held_out: bool = False
) -> dict[str, Any]:
    """Return a random payload: `kind`, `question`, `answer`, `wrong` and the three `numbers`.

    `wrong` is one of the two other numbers, chosen by a hash of the question.
    """
    while True:
        numbers = rng.sample(range(smallest, largest + 1), 3)
        if is_held_out(numbers) == held_out:
            kind = rng.choice(list(kinds))
            place = {"smallest": 0, "middle": 1, "largest": 2}[kind]
            question, answer = KINDS[kind].format(*numbers), sorted(numbers)[place]
            others = [number for number in numbers if number != answer]
            return {
                "kind": kind,
                "question": question,
                "answer": str(answer),
                "wrong": str(others[derive("wrong", question) % 2]),
                "numbers": [str(number) for number in numbers],
            }


def comparisons(
    *,
    count: int,
    split: Split = "train",
    kinds: Sequence[str] = tuple(KINDS),
    smallest: int = 10,
    largest: int = 99,
    seed: int = 0,
) -> list[Task]:
    """Return `count` different questions about numbers from `smallest` to `largest`.

    The type of a task is the kind of its question. Raises ValueError for an unknown kind, and if
    `count` is more than a tenth of the possible questions.

    Args:
        count: Number of tasks.
        split: train or held_out.
        kinds: Kinds of questions, of `KINDS`.
        smallest, largest: Smallest and largest number in a question.
        seed: Seed of the draw.
    """
    check_comparisons(kinds, smallest=smallest, largest=largest)
    size = largest - smallest + 1
    possible = size * (size - 1) * (size - 2) * len(set(kinds))
    if not 1 <= count <= possible // 10:
        raise ValueError(f"count: {count}; between 1 and {possible // 10} fit these numbers")
    rng, found = Random(derive(seed, "comparisons", split)), dict[str, Task]()
    while len(found) < count:
        payload = comparison(
            rng, kinds=kinds, smallest=smallest, largest=largest, held_out=split == "held_out"
        )
        kind, question = str(payload["kind"]), str(payload["question"])
        found[question] = Task(id=f"comparison-{question}", type=kind, payload=payload)
    return list(found.values())


def check_comparisons(kinds: Sequence[str], *, smallest: int, largest: int) -> None:
    """Raise ValueError for an unknown kind, a range with fewer than 10 numbers, and a negative
    number."""
    if not kinds or not set(kinds) <= set(KINDS):
        raise ValueError(f"kinds: some of {', '.join(KINDS)}, not {list(kinds)}")
    if smallest < 0 or largest - smallest < 9:
        raise ValueError("smallest is at least 0, and largest at least 9 more")
