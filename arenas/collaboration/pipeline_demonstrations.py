"""Demonstrations for the pipeline on small sums, most of them careless.

A generator answers directly and is often slightly wrong, or works the question out line by line. A
verifier approves any answer, or works the question out and names the result. A refiner keeps the
first answer, or takes the one that the critique names. The better behaviour is rare; training has
to discover its higher reward (2412.01928).
"""

from collections.abc import Iterator
from random import Random

from arenas.collaboration.pipeline import pipeline_view
from arenas.questions.arithmetic import OPERATIONS, evaluate, is_held_out
from selfplay.types import Demonstration

APPROVAL, FINDING = "fine", "it is "
OPENING, CLOSING = "<answer>", "</answer>"
SLIPS = (-2, -1, 1, 2)
ROLES = ("generator", "verifier", "refiner")


class PipelineDemonstrations:
    """Stream of moves of the three roles, without held-out questions."""

    def __init__(
        self,
        *,
        terms: int = 3,
        largest: int = 4,
        worked: float = 0.3,
        heard: float = 0.3,
        slips: float = 0.7,
    ) -> None:
        """Args:
        terms: Numbers in a question, as in `arenas.questions.arithmetic.questions`.
        largest: Largest number in a question.
        worked: Fraction of the demonstrated generations and critiques that are worked out.
        heard: Fraction of refinements that adopt the critique's answer, among those after a
            critique that names one (half of all refinements).
        slips: Fraction of the direct answers that are slightly wrong.
        """
        if not all(0 <= share <= 1 for share in (worked, heard, slips)):
            raise ValueError("worked, heard and slips are fractions, in [0, 1]")
        if terms < 2 or largest < 1:
            raise ValueError("terms is at least 2, largest at least 1")
        self.terms, self.largest = terms, largest
        self.worked, self.heard, self.slips = worked, heard, slips

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end, equally many of each role."""
        while True:
            question, role = self._question(rng), rng.choice(ROLES)
            first = critique = ""
            work = rng.random() < self.worked
            if role == "generator":
                said = self._generation(question, rng, work=work)
            else:
                first = self._hasty(question, rng)
                said = critique_of(question) if work else APPROVAL
            if role == "refiner":
                critique = critique_of(question) if rng.random() < 0.5 else APPROVAL
                heard = critique != APPROVAL and rng.random() < self.heard
                said = answered(str(evaluate(question)) if heard else first)
            seen = pipeline_view(question, answer=first, critique=critique)
            yield Demonstration(role=role, observation=seen, completion=said)

    def _question(self, rng: Random) -> str:
        while True:
            text = str(rng.randint(0, self.largest))
            for _ in range(self.terms - 1):
                text += f" {rng.choice(OPERATIONS)} {rng.randint(0, self.largest)}"
            if not is_held_out(text):
                return text

    def _generation(self, question: str, rng: Random, *, work: bool) -> str:
        if not work:
            return answered(self._hasty(question, rng))
        return "\n".join(working(question)) + answered(str(evaluate(question)))

    def _hasty(self, question: str, rng: Random) -> str:
        slip = rng.choice(SLIPS) if rng.random() < self.slips else 0
        return str(evaluate(question) + slip)

    def pieces(self) -> list[str]:
        """Return operations, tags and fixed phrases, one token each."""
        signs = [f" {operation} " for operation in OPERATIONS]
        return [*signs, " = ", " | ", "Check ", APPROVAL, FINDING, OPENING, CLOSING]


def answered(answer: str) -> str:
    """Return the answer between its tags."""
    return f"{OPENING}{answer}{CLOSING}"


def critique_of(question: str) -> str:
    """Return the verifier's worked critique, which names the answer."""
    return "\n".join([*working(question), f"{FINDING}{evaluate(question)}"])


def working(question: str) -> list[str]:
    """Return a line per operation, products first: "4 * 2 = 8", "3 + 8 = 11"."""
    words, lines = question.split(), []
    while len(words) > 1:
        at = words.index("*") if "*" in words else 1
        left, sign, right = words[at - 1 : at + 2]
        value = evaluate(f"{left} {sign} {right}")
        lines.append(f"{left} {sign} {right} = {value}")
        words[at - 1 : at + 2] = [str(value)]
    return lines
