"""Small arithmetic questions with known answers, for arenas with discussions of an answer.

The text of a question decides if it is held out, so that the splits share no question.
"""

from collections.abc import Iterator
from itertools import islice
from random import Random

from arenas.splits import Split
from selfplay.rng import derive
from selfplay.types import Task

OPERATIONS = ("+", "-", "*")


def is_held_out(question: str) -> bool:
    """Return True for one question in five, chosen by a hash of its text."""
    return derive("arithmetic", question) % 5 == 0


def questions(
    *, count: int, split: Split = "train", terms: int = 3, largest: int = 9, seed: int = 0
) -> list[Task]:
    """Return `count` different questions such as "3 + 4 * 2", with numbers from 0 to `largest`.

    The payload has `question`, `answer` and `wrong`, a wrong answer near the right one. Raises
    ValueError if `count` is too large.

    Args:
        count: Number of tasks.
        split: train or held_out.
        terms: Numbers in a question.
        largest: Largest number in a question.
        seed: Seed of the draw.
    """
    if count < 1 or terms < 1 or largest < 1:
        raise ValueError("count, terms and largest are at least 1")
    possible = (largest + 1) ** terms * len(OPERATIONS) ** (terms - 1)
    if count > possible // 10:
        raise ValueError(
            f"count: {count}; at most {possible // 10} questions of {terms} terms up to {largest} "
            "are possible"
        )
    found = islice(_drawn(Random(derive(seed, "arithmetic", split)), split, terms, largest), count)
    return [
        Task(id=f"arithmetic-{text}", type="arithmetic", payload=payload(text)) for text in found
    ]


def _drawn(rng: Random, split: Split, terms: int, largest: int) -> Iterator[str]:
    seen = set()
    while True:
        text = str(rng.randint(0, largest))
        for _ in range(terms - 1):
            text += f" {rng.choice(OPERATIONS)} {rng.randint(0, largest)}"
        if text not in seen and is_held_out(text) == (split == "held_out"):
            seen.add(text)
            yield text


def payload(question: str) -> dict[str, str]:
    """Return the payload: question, answer and a wrong answer."""
    value = evaluate(question)
    slip = Random(derive("slip", question)).choice([-2, -1, 1, 2])
    return {"question": question, "answer": str(value), "wrong": str(value + slip)}


def evaluate(question: str) -> int:
    """Return the value of a question of this module: products first, then left to right."""
    words = question.split()
    sign, product, total = 1, int(words[0]), 0
    for operation, word in zip(words[1::2], words[2::2], strict=True):
        if operation == "*":
            product *= int(word)
        else:
            total += sign * product
            sign, product = (1 if operation == "+" else -1), int(word)
    return total + sign * product
