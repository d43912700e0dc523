"""Demonstrations of the form of an answer in the pipeline, for a language model.

Every role names one of the three numbers of a comparison at random, so that a warm start teaches
how an answer is written and not which answer is right.
"""

from collections.abc import Iterator, Sequence
from random import Random

from arenas.collaboration.pipeline import pipeline_view
from arenas.questions.comparisons import KINDS, check_comparisons, comparison
from selfplay.types import Demonstration

ROLES = ("generator", "verifier", "refiner")


class AnswerForm:
    """Stream of random answers of the three roles to comparisons that are not held out."""

    def __init__(
        self,
        *,
        kinds: Sequence[str] = tuple(KINDS),
        smallest: int = 10,
        largest: int = 99,
        form: str = "The answer is {answer}.",
    ) -> None:
        """Args:
        kinds, smallest, largest: Questions, as in `arenas.questions.comparisons.comparisons`.
        form: Text of an answer; `{answer}` stands for the number.
        """
        check_comparisons(kinds, smallest=smallest, largest=largest)
        if form.count("{answer}") != 1:
            raise ValueError(f"form: {form!r} does not contain {{answer}} once")
        self.kinds, self.smallest, self.largest, self.form = kinds, smallest, largest, form

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end, one of each role in turn."""
        while True:
            shown = comparison(rng, kinds=self.kinds, smallest=self.smallest, largest=self.largest)
            first = critique = ""
            for role in ROLES:
                answer = rng.choice(shown["numbers"])
                said = self.form.replace("{answer}", answer)
                view = pipeline_view(shown["question"], answer=first, critique=critique)
                yield Demonstration(role=role, observation=view, completion=said)
                if role == "generator":
                    first = answer
                elif role == "verifier":
                    critique = said
