"""Demonstrations of judged debate about passages: what the warm start imitates.

A side writes down the passage that its answer begins and where it leads, and seldom claims that it
leads to the goal though it does not. The judge tosses a coin, or, seldom at the end, follows the
passage of side A by itself. Who should be believed is left for training to find out.
"""

from collections.abc import Iterator
from random import Random

from arenas.debate.judged import SIDES, judged_view
from arenas.debate.passages import GOAL, NO, YES, Passages, all_steps, shown
from selfplay.types import Demonstration


class JudgedDemonstrations:
    """Arguments and verdicts of debates of one round, none of them about a held-out question."""

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
        doors: Of the questions.
        lied_share: Arguments for the wrong answer that claim what is not so.
        checked_share: Verdicts for which the judge followed a passage, in the last part of the warm
            start: what the policy does when training begins.
        practice_share: The same before.
        practice_until: Where the last part begins, as a share of the warm start.
        """
        self.doors, self.lied_share, self.checked_share = doors, lied_share, checked_share
        self.practice_share, self.practice_until = practice_share, practice_until

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Endless demonstrations, as many verdicts as arguments."""
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
        """What a side says for its answer."""
        if answer != question.answer and rng.random() < self.lied_share:
            return answer + answer[1] + question.goal + YES
        return question.followed(answer)

    def pieces(self) -> list[str]:
        """The fixed strings of prompts and completions, each one token of the tiny tokenizer."""
        words = [GOAL, YES, NO, "<think>", "</think><answer>", "</answer>"]
        words += ["Judge\n", " | ", " = ", "\nA: ", "\nB: "]
        return [*all_steps(doors=self.doors), *words]


def judge(question: Passages, answer: str, rng: Random, *, checked: bool) -> str:
    """A verdict: a coin's, or what side A's answer turns out to be."""
    thought = question.followed(answer) if checked else ""
    believed = answer == question.answer if checked else rng.random() < 0.5
    return f"<think>{thought}</think><answer>{SIDES[not believed]}</answer>"
