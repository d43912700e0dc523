"""Judged questions: a proposer asks, solvers answer, judges grade the question and the answers.

This is Multi-Agent Evolve (2510.23595): one policy in three roles, and rewards only from the
judges' scores. The reward of a question combines its quality and low grades of its answers; that of
an answer comes from its grade; that of a verdict is 1 if it contains a score.

Version history: v0, first version.
"""

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Any, ClassVar

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.questions.arena import PROPOSER, fault, proposer_view, question_task, seats
from arenas.questions.arithmetic import questions
from arenas.questions.verifiers import Verifier, number_in, read_argued
from selfplay.arena import Arena
from selfplay.rewards import mean
from selfplay.types import Action, Metric, Observation, Task

QUESTION_JUDGE = "judge_0"


class JudgedQuestions(Arena):
    """A proposer, n solvers, and n + 1 judges: one for the question, one for each answer."""

    name = "judged_questions_v0"
    services: ClassVar[tuple[str, ...]] = ("oracle",)
    measures = {
        "true_accuracy": Metric(unit="fraction", better="higher"),
        "grade": Metric(unit="fraction"),
        "judge_accuracy": Metric(unit="fraction", better="higher"),
        "quality": Metric(unit="fraction"),
        "played": Metric(unit="fraction", better="higher"),
        "valid_proposal": Metric(unit="fraction", better="higher"),
        "verdict": Metric(unit="fraction", better="higher"),
        "attempts": Metric(unit="count"),
        "solved": Metric(unit="count"),
        "verdict/score": Metric(unit="fraction"),
        "verdict/none": Metric(unit="fraction", better="lower"),
    }
    chief = ("true_accuracy", "grade")

    def __init__(
        self,
        *,
        proposers: int = 1,
        solvers: int = 4,
        best_score: int = 10,
        least_quality: float = 0.5,
        no_score: float = 0.0,
        oracle: Verifier | None = None,
        forbidden: frozenset[str] = frozenset(),
        question_length: int = 1000,
        answer_length: int = 100,
        argument_length: int = 2000,
    ) -> None:
        """Args:
        proposers: 1, or 0 if all questions are given.
        solvers: Number of answers per question.
        best_score: Maximum score; scores start at 1 and are divided by this number.
        least_quality: Minimum quality of a question; below it, no solver answers.
        no_score: Score in place of a verdict without a score, in [0, 1].
        oracle: Checks answers for the metrics only, without effect on rewards.
        forbidden: Ids of questions (see `arena.names_of`) that may not be proposed.
        question_length, answer_length: Maximum characters; longer texts are invalid.
        argument_length: Characters of an answer's reasoning that its judge sees.
        """
        super().__init__({**seats(proposers, solver=solvers), "judge": solvers + 1})
        if min(best_score, question_length, answer_length) < 1 or argument_length < 0:
            raise ValueError("best_score, question_length and answer_length are at least 1")
        if not 0 <= least_quality <= 1 or not 0 <= no_score <= 1:
            raise ValueError("least_quality and no_score lie in [0, 1]")
        self.best_score, self.least_quality, self.no_score = best_score, least_quality, no_score
        self.oracle, self.forbidden = oracle, forbidden
        self.question_length, self.answer_length = question_length, answer_length
        self.argument_length = argument_length
        self.solvers = [a for a in self.possible_agents if a.startswith("solver")]

    def default_task(self, rng: Random) -> Task:
        """Return a task to propose if there is a proposer, otherwise a small sum."""
        if PROPOSER in self.possible_agents:
            return Task(id="propose", payload={"mode": "propose"})
        return questions(count=1, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Begin with the proposal or, if the question is given, with the answers."""
        proposing = task.payload.get("mode") == "propose"
        if proposing and PROPOSER not in self.possible_agents:
            raise ValueError("a task to propose needs proposers: 1")
        self.question = "" if proposing else str(task.payload["question"])
        self.quality: float | None = None
        self.graded = not proposing
        self.answers: dict[str, dict[str, str]] = {}
        self.verdicts: list[bool] = []

    def acting(self) -> Sequence[str]:
        """Return the proposer, its judge, all solvers, or the judges of the valid answers."""
        if not self.question:
            return [PROPOSER]
        if not self.graded:
            return [QUESTION_JUDGE]
        return [_judge_of(agent) for agent in self.answers] or self.solvers

    def judged(self, judge: str) -> Mapping[str, bool]:
        """Return the solver that this judge grades; {} for the question's judge."""
        return {agent: False for agent in self.answers if _judge_of(agent) == judge}

    def accepts(self, judge: str, verdict: Action | None) -> Sequence[str]:
        """Return the graded solver if its score is above half of the best one."""
        share = read_score(verdict, self.best_score)
        return list(self.judged(judge)) if share is not None and share > 0.5 else []

    def saying(self, agent: str, words: str) -> Action:
        """Return an answer without an argument."""
        return json.dumps({"answer": words, "argument": ""})

    def view(self, agent: str) -> Observation:
        """Return the question and, for a judge of an answer, that answer."""
        if agent == PROPOSER:
            return proposer_view(self.task.payload)
        answer = next((a for who, a in self.answers.items() if _judge_of(who) == agent), {})
        said, argument = answer.get("answer", ""), answer.get("argument", "")
        words = [self.question, argument, said]
        return Observation(
            text=" | ".join(word for word in words if word),
            fields={
                "question": self.question,
                "answer": said,
                "argument": argument,
                "best_score": self.best_score,
            },
        )

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Store the question, its grade, the answers or their grades."""
        if PROPOSER in actions:
            self._propose(actions[PROPOSER])
        elif not self.graded:
            self._grade_question(actions[QUESTION_JUDGE])
        elif not self.answers:
            self._answer(actions)
        else:
            self._grade_answers(actions)

    def _propose(self, action: Action | None) -> None:
        question = " ".join((action or "").split())
        reason = fault(question, self.task.payload, self.question_length, self.forbidden)
        verdict = reason or "valid"
        self.note(PROPOSER, verdict=verdict)
        self.measure(valid_proposal=verdict == "valid")
        if verdict == "valid":
            self.question = question
        else:
            self.pay(PROPOSER, 0.0)
            self.finish()

    def _grade_question(self, action: Action | None) -> None:
        self.graded = True
        self.quality = self._score(QUESTION_JUDGE, action)
        self.measure(quality=self.quality, played=self.quality >= self.least_quality)
        if self.quality < self.least_quality:
            self.pay(PROPOSER, (self.quality + 1.0) / 3)
            self._end()
            return
        self.create(question_task(self.task.type, self.question))

    def _answer(self, actions: Mapping[str, Action | None]) -> None:
        for agent, action in actions.items():
            said = read_argued(action, answer=self.answer_length, argument=self.argument_length)
            if said is None:
                self.note(agent, verdict="malformed")
            else:
                self.answers[agent] = said
        if not self.answers:
            self._settle({})

    def _grade_answers(self, actions: Mapping[str, Action | None]) -> None:
        self._settle({a: self._score(_judge_of(a), actions[_judge_of(a)]) for a in self.answers})

    def _settle(self, grades: Mapping[str, float]) -> None:
        """Pay the solvers and the proposer; a missing answer has grade 0."""
        for agent, grade in grades.items():
            self.pay(agent, 0.5 * grade + 0.5)
        all_grades = [grades.get(agent, 0.0) for agent in self.solvers]
        if self.quality is not None:
            self.pay(PROPOSER, (self.quality + 1.0 - mean(all_grades) + 1.0) / 3)
        solved = sum(grade > 0.5 for grade in all_grades)
        self.measure(grade=mean(all_grades), attempts=len(all_grades), solved=solved)
        if self.oracle:
            known = {**self.task.payload, "question": self.question}
            right = {a: self.oracle(s["answer"], known) > 0.5 for a, s in self.answers.items()}
            self.measure(true_accuracy=sum(right.values()) / len(all_grades))
            if right:
                agree = [right[agent] == (grades[agent] > 0.5) for agent in right]
                self.measure(judge_accuracy=sum(agree) / len(agree))
        self._end()

    def _score(self, judge: str, action: Action | None) -> float:
        """Return a verdict's fraction of the best score, and pay the judge 1 for a valid one."""
        share = read_score(action, self.best_score)
        self.verdicts.append(share is not None)
        self.pay(judge, float(share is not None))
        self.note(judge, verdict="none" if share is None else "score")
        return self.no_score if share is None else share

    def _end(self) -> None:
        if self.verdicts:
            self.measure(verdict=sum(self.verdicts) / len(self.verdicts))
        self.finish()


def _judge_of(solver: str) -> str:
    return f"judge_{int(solver.rpartition('_')[2]) + 1}"


def read_score(action: Action | None, best: int) -> float | None:
    """Return a verdict's fraction of the best score ("7", "7.5", "7/10"), None without a score.

    The number after "/" must be the best score: "3/5" is ambiguous if the best score is 10.
    """
    given, slash, whole = (action or "").partition("/")
    score = number_in(given)
    if score is None or (slash and number_in(whole) != best) or not 1 <= score <= best:
        return None
    return float(score / Fraction(best))


def raw_env(**settings: Any) -> JudgedQuestions:
    """Return the arena without a wrapper."""
    return JudgedQuestions(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
