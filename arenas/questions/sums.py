"""Sums: drawn as questions, and verified, also those that a model has just made up."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from arenas.questions.arena import question_task
from arenas.questions.arithmetic import Split, evaluate, is_held_out
from arenas.questions.verifiers import number_in
from selfplay.rng import derive
from selfplay.types import Task

FORM = re.compile(r"[0-9]{1,4}( [+*-] [0-9]{1,4})*")
"""Numbers of up to four digits with operations between them, single spaces around."""


class Calculator:
    """1 where the answer is the value of the payload's `question`, else 0."""

    def __init__(self, *, most_terms: int = 8) -> None:
        """`most_terms`: numbers that a question may have."""
        if most_terms < 1:
            raise ValueError("most_terms is at least 1")
        self.most_terms = most_terms

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """The score; 0 also where the question is none."""
        question = str(payload["question"])
        if self.fault(question):
            return 0.0
        return float(number_in(answer) == evaluate(question))

    def fault(self, question: str) -> str | None:
        """Why a text is no question of this kind; None where it is one."""
        if not FORM.fullmatch(question):
            return "no_sum"
        return "too_many_terms" if len(question.split()) // 2 + 1 > self.most_terms else None


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What is drawn from."""

    terms: tuple[int, int] = (2, 2)
    """Least and most numbers of a question."""
    largest: int = 12
    """Largest number."""
    operations: str = "+-"
    """Of + - *."""

    def __post_init__(self) -> None:
        if not 1 <= self.terms[0] <= self.terms[1] or self.largest < 1:
            raise ValueError("terms: at least 1, least first; largest: at least 1")
        if not self.operations or not set(self.operations) <= set("+-*"):
            raise ValueError(f"operations are some of + - *, not {self.operations!r}")

    def draw(self, rng: Random, split: Split = "train") -> str:
        """A question of this split; the splits share none."""
        while True:
            words = [str(rng.randint(0, self.largest))]
            for _ in range(rng.randint(*self.terms) - 1):
                words += [rng.choice(self.operations), str(rng.randint(0, self.largest))]
            question = " ".join(words)
            if is_held_out(question) == (split == "held_out"):
                return question


def sums(
    *,
    count: int,
    split: Split = "train",
    terms: tuple[int, int] = (2, 2),
    largest: int = 12,
    operations: str = "+-",
    labelled: bool = True,
    seed: int = 0,
) -> list[Task]:
    """`count` different questions with their answers, or without; raises ValueError.

    Unlabelled, a task holds nothing that could tell a learner what is right.
    """
    domain = Sums(terms=terms, largest=largest, operations=operations)
    rng = Random(derive(seed, "sums", split))
    found: dict[str, None] = {}
    tries = 0
    while len(found) < count:
        found[domain.draw(rng, split)] = None
        tries += 1
        if tries > 100 * count:
            raise ValueError(
                f"count: there are not {count} such questions; {len(found)} were found"
            )
    return [
        question_task("sum", question, str(evaluate(question)) if labelled else None)
        for question in found
    ]
