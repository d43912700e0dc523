"""Sums with and without a calculator: easy ones that a tiny model knows by heart, and hard ones
that it cannot compute.

Easy sums are a closed table of 25, all of which the warm start shows; hard sums have three
numbers of two digits, and those of the split "held_out" are shown nowhere.
"""

from collections.abc import Iterator
from random import Random

from arenas.questions.arena import question_task, question_view
from arenas.questions.arithmetic import evaluate
from arenas.questions.demonstrations import answered
from arenas.questions.sums import Sums
from arenas.splits import Split
from selfplay.errors import check_choice
from selfplay.rng import derive
from selfplay.types import Demonstration, Task

EASY = tuple(f"{first} + {second}" for first in range(1, 6) for second in range(1, 6))
HARD = Sums(terms=(3, 3), smallest=10, largest=99, operations="+-")
KINDS = ("easy", "hard")


def drawn(kind: str, rng: Random, split: Split = "train") -> str:
    """Return a random question of a kind. Easy questions are the same in both splits."""
    return rng.choice(EASY) if kind == "easy" else HARD.draw(rng, split)


def tool_sums(*, count: int, kind: str, split: Split = "train", seed: int = 0) -> list[Task]:
    """Return `count` questions of a kind, easy or hard; a question may occur several times.

    Raises ValueError for another kind.
    """
    check_choice("kind", kind, sorted(KINDS))
    rng = Random(derive(seed, "tool sums", kind, split))
    questions = [drawn(kind, rng, split) for _ in range(count)]
    return [question_task(kind, each, str(evaluate(each))) for each in questions]


def both(*, count: int, split: Split = "train", seed: int = 0) -> list[Task]:
    """Return `count` questions, of which two in five are hard.

    Raises ValueError if `count` is no multiple of five.

    Args:
        count: Number of tasks, a multiple of five.
        split: train or held_out.
        seed: Seed of the draw.
    """
    if count < 5 or count % 5:
        raise ValueError(f"count: a multiple of 5 is needed, not {count}")
    easy = tool_sums(count=count // 5 * 3, kind="easy", split=split, seed=seed)
    hard = tool_sums(count=count // 5 * 2, kind="hard", split=split, seed=seed)
    return [*easy, *hard]


class ToolSumDemonstrations:
    """Demonstrations of a solver that calls a calculator at random, whatever the question is.

    Answers after a call are right. Direct answers to easy questions are right most of the time,
    and direct answers to hard questions seldom; a wrong one is a number near the right one. The
    first part practises calls; in the last part they are rare.
    """

    def __init__(
        self,
        *,
        calls: float = 0.1,
        right_easy: float = 0.8,
        right_hard: float = 0.02,
        after: float = 0.3,
        practice: float = 0.5,
        practice_until: float = 0.7,
    ) -> None:
        """Args:
        calls: Fraction of first completions that call, in the last part.
        right_easy: Probability that a direct answer to an easy question is right.
        right_hard: Probability that a direct answer to a hard question is right.
        after: Fraction of demonstrations that show the answer after a call.
        practice: Fraction of first completions that call, in the first part.
        practice_until: Fraction of the warm start after which the last part begins.
        """
        fractions = (calls, right_easy, right_hard, after, practice, practice_until)
        if not all(0 <= each <= 1 for each in fractions):
            raise ValueError("all settings of the demonstrations are from 0 to 1")
        self.calls, self.after = calls, after
        self.right = {"easy": right_easy, "hard": right_hard}
        self.practice, self.practice_until = practice, practice_until

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end; `progress` is the fraction of the warm start so far."""
        calls = self.practice if progress < self.practice_until else self.calls
        while True:
            kind = rng.choice(KINDS)
            question = drawn(kind, rng)
            value = evaluate(question)
            called = f"<calculator>{question}</calculator>"
            if rng.random() < self.after:
                yield self._shown(question, answered(str(value)), (called, str(value)))
            elif rng.random() < calls:
                yield self._shown(question, called)
            else:
                wrong = rng.random() >= self.right[kind]
                near = value + rng.choice([-3, -2, -1, 1, 2, 3]) if wrong else value
                yield self._shown(question, answered(str(near)))

    @staticmethod
    def _shown(question: str, completion: str, *called: tuple[str, str]) -> Demonstration:
        seen = question_view(question)
        return Demonstration(role="solver", observation=seen, completion=completion, called=called)

    def pieces(self) -> list[str]:
        """Return the tags and signs, one token each. Numbers are written in digits."""
        tags = ["<answer>", "</answer>", "<calculator>", "</calculator>"]
        return [*tags, "<tool_response>\n", "\n</tool_response>", " + ", " - "]
