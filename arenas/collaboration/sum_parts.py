"""Questions of several parts, each a sum that a tiny model cannot compute in one step.

"37 + 84 - 55; 12 + 91 - 40" is answered by the value of each part, in order: "66; 63". Questions of
the split "held_out" share no part with those of training.
"""

from collections.abc import Mapping
from random import Random
from typing import Any

from arenas.questions.arena import question_task
from arenas.questions.arithmetic import evaluate
from arenas.questions.sums import Sums
from arenas.questions.verifiers import meaning
from arenas.splits import Split
from selfplay.errors import ConfigError
from selfplay.rng import derive
from selfplay.types import Task

PART = Sums(terms=(3, 3), smallest=10, largest=99, operations="+-")
SEPARATOR = "; "
MOST_PARTS = 8


def drawn_parts(parts: int, rng: Random, split: Split = "train") -> list[str]:
    """Return the parts of a random question."""
    return [PART.draw(rng, split) for _ in range(parts)]


def answer_of(parts: list[str]) -> str:
    """Return the right answer to a question of these parts."""
    return SEPARATOR.join(str(evaluate(part)) for part in parts)


def sum_parts(*, count: int, parts: int = 2, split: Split = "train", seed: int = 0) -> list[Task]:
    """Return `count` questions of `parts` parts each; raises ValueError for a number out of range.

    Args:
        count: Number of tasks.
        parts: Parts of a question.
        split: train or held_out.
        seed: Seed of the draw.
    """
    if count < 1 or not 1 <= parts <= MOST_PARTS:
        raise ValueError(f"count is at least 1, and parts from 1 to {MOST_PARTS}")
    rng = Random(derive(seed, "sum parts", parts, split))
    drawn = [drawn_parts(parts, rng, split) for _ in range(count)]
    return [question_task(f"parts_{parts}", SEPARATOR.join(d), answer_of(d)) for d in drawn]


class SameValues:
    """Verifier with score 1 if the values of an answer are those of the payload's `answer`."""

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """Return the score; raises ConfigError for a task without an answer."""
        if "answer" not in payload:
            raise ConfigError("verifier: SameValues needs an 'answer' in every task; one has none")
        return float(values_in(answer) == values_in(str(payload["answer"])) != "")


def values_in(answer: str) -> str:
    """Return the values between the semicolons of an answer, as a text that is the same for equal
    values; "" for an empty answer."""
    return SEPARATOR.join(meaning(each) for each in answer.split(";")) if answer.strip() else ""
