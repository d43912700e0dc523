"""Sums with and without a calculator: easy ones that a tiny model knows, and hard ones that it does
not."""

from collections.abc import Iterator
from random import Random

from arenas.questions.arena import question_task
from arenas.questions.arithmetic import Split, evaluate
from arenas.questions.demonstrations import answered
from arenas.questions.sums import Sums
from selfplay.rng import derive
from selfplay.types import Demonstration, Observation, Task

EASY = Sums(terms=(2, 2), largest=4, operations="+")
HARD = Sums(terms=(3, 3), largest=9, operations="+-*")
KINDS = {"easy": EASY, "hard": HARD}


def tool_sums(*, count: int, kind: str, split: Split = "train", seed: int = 0) -> list[Task]:
    """Return questions of a kind, easy or hard, with repetitions; raises ValueError."""
    if kind not in KINDS:
        raise ValueError(f"kind is one of {sorted(KINDS)}, not {kind!r}")
    rng = Random(derive(seed, "tool sums", kind, split))
    questions = [KINDS[kind].draw(rng, split) for _ in range(count)]
    return [question_task(kind, each, str(evaluate(each))) for each in questions]


def both(*, count: int, split: Split = "train", seed: int = 0) -> list[Task]:
    """Return as many easy as hard questions, in turn."""
    easy = tool_sums(count=count, kind="easy", split=split, seed=seed)
    hard = tool_sums(count=count, kind="hard", split=split, seed=seed)
    return [task for pair in zip(easy, hard, strict=True) for task in pair]


class ToolSumDemonstrations:
    """Demonstrations of a solver that calls a calculator by chance, easy question or hard.

    Answers after a call are right, and so are direct answers to easy questions. Direct answers to
    hard questions are wrong, most of them: a number near the right one.
    """

    def __init__(self, *, calls: float = 0.5, right: float = 0.1) -> None:
        """Args:
        calls: Probability of a call.
        right: Probability that a direct answer to a hard question is right.
        """
        if not (0 <= calls <= 1 and 0 <= right <= 1):
            raise ValueError("calls and right are probabilities")
        self.calls, self.right = calls, right

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end."""
        while True:
            kind = rng.choice(sorted(KINDS))
            question = KINDS[kind].draw(rng)
            value = evaluate(question)
            called = f"<calculator>{question}</calculator>"
            step = rng.random()
            if step < self.calls / 2:
                yield self._shown(question, called)
            elif step < self.calls:
                yield self._shown(question, answered(str(value)), (called, str(value)))
            else:
                wrong = kind == "hard" and rng.random() >= self.right
                near = value + rng.choice([-3, -2, -1, 1, 2, 3]) if wrong else value
                yield self._shown(question, answered(str(near)))

    @staticmethod
    def _shown(question: str, completion: str, *called: tuple[str, str]) -> Demonstration:
        seen = Observation(text=question, fields={"question": question})
        return Demonstration(role="solver", observation=seen, completion=completion, called=called)

    def pieces(self) -> list[str]:
        """Return the tags, signs and numbers, one token each."""
        tags = ["<answer>", "</answer>", "<calculator>", "</calculator>"]
        frame = ["<tool_response>\n", "\n</tool_response>"]
        return [*tags, *frame, " + ", " - ", " * ", *map(str, range(-100, 750))]
