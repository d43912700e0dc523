"""Sums as questions, and a verifier that can also check sums proposed by a model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from arenas.questions.arena import question_task
from arenas.questions.arithmetic import evaluate, is_held_out
from arenas.questions.verifiers import number_in
from arenas.splits import Split
from selfplay.rng import derive
from selfplay.types import Task

_NUMBER = "(0|[1-9][0-9]{0,3})"
FORM = re.compile(f"{_NUMBER}( [+*-] {_NUMBER})*")
"""Pattern of numbers of up to four digits, joined by operations with single spaces; a number has no
leading zeros, so that each sum is written in one way."""
TRIES = 1000
"""Largest number of draws to find a question of a split."""


class SumVerifier:
    """Verifier with score 1 if the answer is the value of the payload's `question`, else 0."""

    def __init__(self, *, most_terms: int = 8) -> None:
        """`most_terms` is the maximum number of terms in a question."""
        if most_terms < 1:
            raise ValueError("most_terms is at least 1")
        self.most_terms = most_terms

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """Return the score; 0 if the question is invalid."""
        question = str(payload["question"])
        if self.fault(question):
            return 0.0
        return float(number_in(answer) == evaluate(question))

    def fault(self, question: str) -> str | None:
        """Return the name of the reason why a text is no sum, or None."""
        if not FORM.fullmatch(question):
            return "no_sum"
        return "too_many_terms" if len(question.split()) // 2 + 1 > self.most_terms else None


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Distribution of sums as questions."""

    terms: tuple[int, int] = (2, 2)
    """Minimum and maximum number of terms."""
    smallest: int = 0
    """Smallest number in a question."""
    largest: int = 12
    """Largest number in a question."""
    operations: str = "+-"
    """Operations, some of + - *."""

    def __post_init__(self) -> None:
        if not 1 <= self.terms[0] <= self.terms[1] or not 0 <= self.smallest < self.largest:
            raise ValueError("terms must be at least 1, minimum first; 0 <= smallest < largest")
        if not self.operations or not set(self.operations) <= set("+-*"):
            raise ValueError(f"operations must be some of + - *, not {self.operations!r}")

    def draw(self, rng: Random, split: Split = "train") -> str:
        """Return a random question of a split; the splits share no question.

        Raises ValueError if none is found, because there are few questions.
        """
        for _ in range(TRIES):
            words = [self._number(rng)]
            for _ in range(rng.randint(*self.terms) - 1):
                words += [rng.choice(self.operations), self._number(rng)]
            question = " ".join(words)
            if is_held_out(question) == (split == "held_out"):
                return question
        raise ValueError(f"no {split} question with {self} was found in {TRIES} tries")

    def _number(self, rng: Random) -> str:
        return str(rng.randint(self.smallest, self.largest))


def sums(
    *,
    count: int,
    split: Split = "train",
    terms: tuple[int, int] = (2, 2),
    smallest: int = 0,
    largest: int = 12,
    operations: str = "+-",
    labelled: bool = True,
    seed: int = 0,
) -> list[Task]:
    """Return `count` different questions, with or without answers.

    Raises ValueError if fewer different questions are found.

    Tasks without labels contain no information about the right answer.

    Args:
        count: Number of tasks.
        split: train or held_out.
        terms: Smallest and largest number of terms.
        smallest, largest: Smallest and largest number in a question.
        operations: Characters of the operations.
        labelled: False for tasks without the right answer.
        seed: Seed of the draw.
    """
    domain = Sums(terms=terms, smallest=smallest, largest=largest, operations=operations)
    rng = Random(derive(seed, "sums", split))
    found: dict[str, None] = {}
    tries = 0
    while len(found) < count:
        found[domain.draw(rng, split)] = None
        tries += 1
        if tries > 100 * count:
            raise ValueError(
                f"count: cannot make {count} different questions; {len(found)} were found"
            )
    return [
        question_task("sum", question, str(evaluate(question)) if labelled else None)
        for question in found
    ]
