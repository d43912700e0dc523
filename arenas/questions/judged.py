"""Judged questions: a proposer asks, solvers answer, and judges grade question and answers.

Multi-Agent Evolve (2510.23595): one policy in three roles, and no truth but the judge's scores. A
question is worth its quality and how badly the answers to it were graded; an answer its grade; a
verdict that it is one. A judge that gives no score is a named outcome.

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
    """A proposer, n solvers, and n + 1 judges: one of the question, one of each answer."""

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
        proposers: 1, or 0 where all questions are given.
        solvers: Answers to each question.
        best_score: Scores go from 1 to this and count as shares of it.
        least_quality: A question of a lower quality is not played, and pays no difficulty.
        no_score: What counts in place of a verdict without a score, in [0, 1].
        oracle: Checks answers for the metrics alone; nobody is paid by it.
        forbidden: Questions, by their names (see `questions.names_of`), that may not be proposed.
        question_length, answer_length: Characters; what is longer is invalid.
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
        """A proposal where there is a proposer, else a small sum."""
        if PROPOSER in self.possible_agents:
            return Task(id="propose", payload={"mode": "propose"})
        return questions(count=1, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Begin with the proposal, or at once with the question."""
        proposing = task.payload.get("mode") == "propose"
        if proposing and PROPOSER not in self.possible_agents:
            raise ValueError("a task to propose needs proposers: 1")
        self.question = "" if proposing else str(task.payload["question"])
        self.quality: float | None = None
        self.graded = not proposing
        self.answers: dict[str, dict[str, str]] = {}
        self.verdicts: list[bool] = []

    def acting(self) -> Sequence[str]:
        """The proposer, its judge, all solvers, and the judges of those who answered."""
        if not self.question:
            return [PROPOSER]
        if not self.graded:
            return [QUESTION_JUDGE]
        return [_judge_of(agent) for agent in self.answers] or self.solvers

    def judged(self, judge: str) -> Mapping[str, bool]:
        """The solver whose answer this judge grades; of the question's judge nobody."""
        return {agent: False for agent in self.answers if _judge_of(agent) == judge}

    def accepts(self, judge: str, verdict: Action | None) -> Sequence[str]:
        """That solver, for more than half of the best score."""
        share = read_score(verdict, self.best_score)
        return list(self.judged(judge)) if share is not None and share > 0.5 else []

    def saying(self, agent: str, words: str) -> Action:
        """An answer without an argument."""
        return json.dumps({"answer": words, "argument": ""})

    def view(self, agent: str) -> Observation:
        """A judge sees the question, and the answer that it grades if it is no question's judge."""
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
        """Take the question, its grade, the answers or their grades."""
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
        """Pay the solvers and the proposer; an answer that is none has grade 0."""
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
        """A verdict as a share of the best score, and its judge's pay: 1 where it is one."""
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
    """The share of the best score that a verdict gives ("7", "7.5", "7/10"); None for no score.

    A whole has to be the best score: what 3/5 of ten is meant to be is for the judge to say.
    """
    given, slash, whole = (action or "").partition("/")
    score = number_in(given)
    if score is None or (slash and number_in(whole) != best) or not 1 <= score <= best:
        return None
    return float(score / Fraction(best))


def raw_env(**settings: Any) -> JudgedQuestions:
    """The arena itself."""
    return JudgedQuestions(**settings)


def env(**settings: Any) -> Any:
    """The arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
