"""Demonstrations of judged debate about passages, for the warm start.

A side writes down the passage that begins with its answer and the result, and rarely claims falsely
that the passage leads to the goal. The judge decides at random or, rarely at the end, follows the
passage of side A itself. Training has to discover which arguments are reliable.
"""

from collections.abc import Iterator
from random import Random

from arenas.debate.judged import SIDES, judged_view
from arenas.debate.passages import GOAL, NO, YES, Passages, all_steps, shown
from selfplay.types import Demonstration


class JudgedDemonstrations:
    """Stream of arguments and verdicts of one-round debates, without held-out questions."""

    def __init__(
        self,
        *,
        doors: int = 4,
        lied_share: float = 0.2,
        checked_share: float = 0.2,
        practice_share: float = 0.9,
        practice_until: float = 0.85,
    ) -> None:
        """Args:
        doors: Number of doors per question.
        lied_share: Fraction of the arguments for the wrong answer that make a false claim.
        checked_share: Fraction of verdicts for which the judge follows a passage, in the last part
            of the warm start, which the policy imitates when training begins.
        practice_share: The same fraction before that part.
        practice_until: Start of the last part, as a fraction of the warm start.
        """
        self.doors, self.lied_share, self.checked_share = doors, lied_share, checked_share
        self.practice_share, self.practice_until = practice_share, practice_until

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end, as many verdicts as arguments."""
        checked = self.practice_share if progress < self.practice_until else self.checked_share
        while True:
            question = shown(rng, doors=self.doors)
            wrong = rng.choice([first for first in question.paths if first != question.answer])
            answers = dict(zip(SIDES, rng.sample([question.answer, wrong], 2), strict=True))
            arguments = [self._argue(question, answer, rng) for answer in answers.values()]
            judging = rng.random() < 0.5
            place = rng.randrange(2)
            yield Demonstration(
                role="judge" if judging else "debater",
                observation=judged_view(
                    question.question,
                    answers,
                    [arguments] if judging else [],
                    side="" if judging else SIDES[place],
                    rounds=1,
                ),
                completion=judge(question, answers["A"], rng, checked=rng.random() < checked)
                if judging
                else arguments[place],
            )

    def _argue(self, question: Passages, answer: str, rng: Random) -> str:
        """Return a side's argument for its answer."""
        if answer != question.answer and rng.random() < self.lied_share:
            return answer + answer[1] + question.goal + YES
        return question.followed(answer)

    def pieces(self) -> list[str]:
        """Return the fixed strings of prompts and completions, one token each."""
        words = [GOAL, YES, NO, "<think>", "</think><answer>", "</answer>"]
        words += ["Judge\n", " | ", " = ", "\nA: ", "\nB: "]
        return [*all_steps(doors=self.doors), *words]


def judge(question: Passages, answer: str, rng: Random, *, checked: bool) -> str:
    """Return a verdict, at random or after following the passage of side A's answer."""
    thought = question.followed(answer) if checked else ""
    believed = answer == question.answer if checked else rng.random() < 0.5
    return f"<think>{thought}</think><answer>{SIDES[not believed]}</answer>"
