"""Demonstrations of the form of an answer in the pipeline, for a model that can already add.

The questions are small sums with right answers, so that a warm start changes how the model writes
its answers more than which numbers it writes.
"""

from collections.abc import Iterator, Sequence
from random import Random

from arenas.collaboration.pipeline import pipeline_view
from arenas.questions.arithmetic import OPERATIONS, evaluate, is_held_out
from selfplay.types import Demonstration

ROLES = ("generator", "verifier", "refiner")
SLIPS = (-2, -1, 1, 2)
"""Differences between a wrong answer that is shown to an agent and the right one."""


class AnswerForm:
    """Stream of right answers of the three roles to sums of two terms, without held-out questions.

    A verifier and a refiner are shown wrong answers of others half of the time.
    """

    def __init__(
        self,
        *,
        largest: int = 9,
        operations: Sequence[str] = OPERATIONS,
        form: str = "The answer is {answer}.",
    ) -> None:
        """Args:
        largest: Largest number in a question.
        operations: Signs of the questions, as in `arenas.questions.arithmetic.questions`.
        form: Text of an answer; `{answer}` stands for the number.
        """
        if largest < 1 or not operations or not set(operations) <= set(OPERATIONS):
            raise ValueError(
                f"largest is at least 1, operations are some of {' '.join(OPERATIONS)}"
            )
        if form.count("{answer}") != 1:
            raise ValueError(f"form: {form!r} does not contain {{answer}} once")
        self.largest, self.operations, self.form = largest, list(operations), form

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end, equally many of each role."""
        while True:
            question = self._question(rng)
            for role in ROLES:
                first = "" if role == "generator" else str(self._shown(question, rng))
                critique = self._said(self._shown(question, rng)) if role == "refiner" else ""
                yield Demonstration(
                    role=role,
                    observation=pipeline_view(question, answer=first, critique=critique),
                    completion=self._said(evaluate(question)),
                )

    def _question(self, rng: Random) -> str:
        while True:
            left, right = rng.randint(0, self.largest), rng.randint(0, self.largest)
            text = f"{left} {rng.choice(self.operations)} {right}"
            if not is_held_out(text):
                return text

    def _shown(self, question: str, rng: Random) -> int:
        return evaluate(question) + (rng.choice(SLIPS) if rng.random() < 0.5 else 0)

    def _said(self, answer: int) -> str:
        return self.form.replace("{answer}", str(answer))
