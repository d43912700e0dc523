"""Judged questions: a proposer asks, solvers answer, judges grade the question and the answers.

This is Multi-Agent Evolve (2510.23595): one policy in three roles, and rewards only from the
judges' scores. The reward of a question combines its quality and low grades of its answers. An
answer's reward comes from its grade. A verdict's reward is 1 if it contains a score. A judge
without a score is asked again, and then earns the fraction of its verdicts that contain a score; a
question or an answer that gets no score is left out of learning.

With a rule, a verifier grades answers too. Either an answer that the rule accepts has only the
rule's score (rule_use=first), or all answers have a weighted mean of both scores
(rule_use=weighted, a hybrid reward).

Version history: v0, first version.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Any, ClassVar, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.questions.arena import PROPOSER, fault, proposer_view, question_task, seats
from arenas.questions.arithmetic import questions
from arenas.questions.verifiers import Verifier, number_in, read_argued, score_of, waits
from arenas.quotes import in_one_line, quoted
from selfplay.arena import Arena
from selfplay.credit.rewards import mean
from selfplay.errors import check_choice
from selfplay.types import Action, Metric, Observation, Task

QUESTION_JUDGE = "judge_0"
RuleUse = Literal["first", "weighted"]


class JudgedQuestions(Arena):
    """A proposer, n solvers, and n + 1 judges: one for the question, one for each answer."""

    name = "judged_questions_v0"
    optional_roles = ("proposer",)
    services: ClassVar[tuple[str, ...]] = ("oracle", "rule")
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
        "ungraded": Metric(unit="fraction", better="lower"),
        "judged_by_rule": Metric(unit="fraction"),
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
        retries: int = 1,
        no_score: float | None = None,
        rule: Verifier | None = None,
        rule_use: RuleUse = "first",
        rule_weight: float = 0.5,
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
        retries: Number of times that a judge without a score is asked again.
        no_score: Score, in [0, 1], if the judge gives none after all retries. None: the question or
            answer is left out of learning, and a question without a score ends the episode.
        rule: Verifier that grades answers in addition to the judges; None: judges alone.
        rule_use: first: an answer with the rule's score above 1/2 has that score and no judge, and
            all others have the judge's. weighted: all answers have a weighted mean of both.
        rule_weight: Weight of the rule's score in that mean, in [0, 1].
        oracle: Checks answers for the metrics only, without effect on rewards.
        forbidden: Ids of questions (see `arenas.questions.arena.names_of`) that may not be
            proposed.
        question_length, answer_length: Maximum characters; longer texts are invalid.
        argument_length: Maximum characters of an answer's reasoning that its judge sees; the rest
            is cut off.
        """
        super().__init__({**seats(proposers, solver=solvers), "judge": solvers + 1})
        if min(best_score, question_length, answer_length) < 1 or argument_length < 0:
            raise ValueError("best_score, question_length and answer_length are at least 1")
        if not all(0 <= each <= 1 for each in (least_quality, no_score or 0.0, rule_weight)):
            raise ValueError("least_quality, no_score and rule_weight lie in [0, 1]")
        if retries < 0:
            raise ValueError(f"retries is at least 0, not {retries}")
        check_choice("rule_use", rule_use, get_args(RuleUse))
        self.best_score, self.least_quality, self.no_score = best_score, least_quality, no_score
        self.retries = retries
        self.rule, self.rule_use, self.rule_weight = rule, rule_use, rule_weight
        self.oracle, self.forbidden = oracle, forbidden
        self.blocking = waits(rule, oracle)
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
        self.grades: dict[str, float | None] = {}
        self.missed = Counter[str]()
        self.verdicts: list[bool] = []

    def acting(self) -> Sequence[str]:
        """Return the proposer, its judge, all solvers, or the judges of answers without a grade."""
        if not self.question:
            return [PROPOSER]
        if not self.graded:
            return [QUESTION_JUDGE]
        return [_judge_of(a) for a in self.answers if a not in self.grades] or self.solvers

    def judged(self, judge: str) -> Mapping[str, bool]:
        """Return {solver: False} for the solver that this judge grades, because no answer is known
        to deserve a good grade; {} for the question's judge."""
        return {agent: False for agent in self.answers if _judge_of(agent) == judge}

    def accepts(self, judge: str, verdict: Action | None) -> Sequence[str]:
        """Return the graded solver if its score is above half of the best one."""
        share = read_score(verdict, self.best_score)
        return list(self.judged(judge)) if share is not None and share > 0.5 else []

    def saying(self, agent: str, words: str) -> Action:
        """Return the action of an agent that answers with these words, without an argument."""
        return json.dumps({"answer": words, "argument": ""})

    def view(self, agent: str) -> Observation:
        """Return the question and, for a judge of an answer, that answer."""
        if agent == PROPOSER:
            return proposer_view(self.task.payload)
        answer = next((a for who, a in self.answers.items() if _judge_of(who) == agent), {})
        said, argument = quoted(answer.get("answer", "")), quoted(answer.get("argument", ""))
        words = [self.question, argument, said]
        return Observation(
            text=" | ".join(word for word in words if word),
            fields={
                "question": self.question,
                "answer": said,
                "argument": argument,
                "best_score": self.best_score,
                "asked_again": self.missed[agent] > 0,
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
        question = in_one_line(action or "")
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
        quality = self._score(QUESTION_JUDGE, action)
        if quality is None and self.missed[QUESTION_JUDGE] <= self.retries:
            return
        self.graded = True
        if quality is None:
            self.leave_out(PROPOSER)
            self.measure(played=0.0, ungraded=1.0)
            self._end()
            return
        self.quality = quality
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
        if self.rule and self.rule_use == "first":
            scores = {agent: self._by_rule(agent) for agent in self.answers}
            self.grades = {agent: score for agent, score in scores.items() if score > 0.5}
            self.measure(judged_by_rule=len(self.grades) / len(self.solvers))
        if len(self.grades) == len(self.answers):
            self._settle()

    def _by_rule(self, agent: str) -> float:
        """Return the rule's score of an answer."""
        assert self.rule
        payload = {**self.task.payload, "question": self.question}
        return score_of(self.rule, self.answers[agent]["answer"], payload)

    def _grade_answers(self, actions: Mapping[str, Action | None]) -> None:
        for agent in [each for each in self.answers if each not in self.grades]:
            judge = _judge_of(agent)
            grade = self._score(judge, actions[judge])
            if grade is None and self.missed[judge] <= self.retries:
                continue
            if grade is not None and self.rule and self.rule_use == "weighted":
                grade += self.rule_weight * (self._by_rule(agent) - grade)
            self.grades[agent] = grade
        if len(self.grades) == len(self.answers):
            self._settle()

    def _settle(self) -> None:
        """Pay the solvers and the proposer; a malformed answer has grade 0."""
        grades = {agent: grade for agent, grade in self.grades.items() if grade is not None}
        for agent in self.grades.keys() - grades.keys():
            self.leave_out(agent)
        for agent, grade in grades.items():
            self.pay(agent, 0.5 * grade + 0.5)
        self.measure(ungraded=1 - len(grades) / len(self.grades) if self.grades else 0.0)
        missing = [agent for agent in self.solvers if agent not in self.answers]
        all_grades = [*grades.values(), *(0.0 for _ in missing)]
        if not all_grades:
            if self.quality is not None:
                self.leave_out(PROPOSER)
            self._end()
            return
        if self.quality is not None:
            self.pay(PROPOSER, (self.quality + 1.0 - mean(all_grades) + 1.0) / 3)
        solved = sum(grade > 0.5 for grade in all_grades)
        self.measure(grade=mean(all_grades), attempts=len(all_grades), solved=solved)
        if self.oracle:
            known = {**self.task.payload, "question": self.question}
            right = {
                a: score_of(self.oracle, s["answer"], known) > 0.5 for a, s in self.answers.items()
            }
            self.measure(true_accuracy=sum(right.values()) / len(self.solvers))
            if grades:
                agree = [right[agent] == (grade > 0.5) for agent, grade in grades.items()]
                self.measure(judge_accuracy=sum(agree) / len(agree))
        self._end()

    def _score(self, judge: str, action: Action | None) -> float | None:
        """Return a verdict's fraction of the best score, and pay the judge for a valid one.

        The pay is 1, or 1 / n for the n-th verdict: a credit method that compares returns gives all
        turns of an episode the same, and would otherwise reward the verdicts without a score too.
        Returns None while the judge is asked again, and then `no_score`.
        """
        share = read_score(action, self.best_score)
        self.verdicts.append(share is not None)
        self.pay(judge, 0.0 if share is None else 1 / (1 + self.missed[judge]))
        self.note(judge, verdict="none" if share is None else "score")
        if share is None:
            self.missed[judge] += 1
            return self.no_score if self.missed[judge] > self.retries else None
        return share

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
