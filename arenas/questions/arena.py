"""Questions: a proposer asks, solvers answer, and their agreement measures the difficulty.

A question needs no known answer. Without one, the most frequent answer is the label: test-time
reinforcement learning pays answers that agree with it (TTRL, 2504.16084), and the reward of
R-Zero's challenger (2508.05004) is highest if half of the solvers give this answer. With a verifier
that can check an answer to any question, a proposer can also get a question that was too hard and
write an easier one (LADDER, 2503.00735).

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, ClassVar, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.absolute_zero.rewards import learnability
from arenas.questions.arithmetic import questions
from arenas.questions.verifiers import (
    Matches,
    QuestionVerifier,
    Verifier,
    meaning,
    read_argued,
    score_of,
    vote,
    waits,
)
from arenas.questions.weighted import Weighted
from arenas.quotes import in_one_line
from selfplay.arena import Arena
from selfplay.credit.rewards import majority, minority, uncertainty
from selfplay.errors import check_choice
from selfplay.types import Action, Metric, Observation, Task

PROPOSER = "proposer_0"
Label = Literal["majority", "verifier"]
ProposerPay = Literal["uncertainty", "minority", "learnability", "none"]


class Questions(Arena):
    """An optional proposer and n solvers: first the proposal, then the answers.

    A task with the mode "propose" has both stages. Any other task, such as one of `question_task`,
    gives the question and has only the answers.
    """

    name = "questions_v0"
    optional_roles = ("proposer", "voter")
    services: ClassVar[tuple[str, ...]] = ("verifier", "oracle")
    measures = {
        "solve_rate": Metric(unit="fraction", better="higher"),
        "true_accuracy": Metric(unit="fraction", better="higher"),
        "majority_accuracy": Metric(unit="fraction", better="higher"),
        "label_accuracy": Metric(unit="fraction", better="higher"),
        "vote_share": Metric(unit="fraction"),
        "valid_proposal": Metric(unit="fraction", better="higher"),
        "attempts": Metric(unit="count"),
        "solved": Metric(unit="count", better="higher"),
        "score/*": Metric(unit="fraction", better="higher"),  # of the parts of a Weighted verifier
    }
    chief = ("solve_rate", "true_accuracy")

    def __init__(
        self,
        *,
        proposers: int = 1,
        solvers: int = 8,
        voters: int = 0,
        label: Label = "majority",
        verifier: Verifier | None = None,
        oracle: Verifier | None = None,
        proposer_pay: ProposerPay = "uncertainty",
        invalid: float = 0.0,
        wrong: float = 0.0,
        malformed: float = 0.0,
        forbidden: frozenset[str] = frozenset(),
        question_length: int = 1000,
        answer_length: int = 100,
    ) -> None:
        """Args:
        proposers: 1, or 0 if all questions are given.
        solvers: Number of answers per question.
        voters: Number of extra answers that vote without reward (TTRL: 64 votes, 32 learn).
        label: Source of the right answer. majority: the task's own `answer`, otherwise the majority
            answer. verifier: the verifier's score, also for proposed questions.
        verifier: Scores answers for `label: verifier`; its optional method `fault(question)` checks
            proposed questions. None: exact match with the task's `answer`.
        oracle: Checks answers for the metrics only, without effect on rewards.
        proposer_pay: Proposer's reward for a valid question. uncertainty: 1 - 2 |p - 1/2|, the form
            of R-Zero's paper, where p is the fraction of answers that agree with the majority.
            minority: min(p, 1 - p), the form of its released code. learnability: 1 minus the solve
            rate, and 0 if all or no solvers are right. none: 0.
        invalid: Proposer's reward for an invalid question.
        wrong: Solver's reward w for an answer with the score 0. An answer with the score s gets
            w + (1 - w) s, so that a right one gets 1.
        malformed: Solver's reward for a text without an answer.
        forbidden: Ids of questions (see `question_task`) that may not be proposed.
        question_length, answer_length: Maximum characters; longer texts are invalid.
        """
        super().__init__(seats(proposers, solver=solvers, voter=voters))
        check_choice("label", label, get_args(Label))
        check_choice("proposer_pay", proposer_pay, get_args(ProposerPay))
        if min(question_length, answer_length) < 1:
            raise ValueError("question_length and answer_length are at least 1")
        if proposers and label == "verifier" and not isinstance(verifier, QuestionVerifier):
            raise ValueError(
                "label: verifier needs a verifier that can check any proposed question (one with "
                "a method fault, such as arenas.questions.sums.SumVerifier), or label: majority"
            )
        if verifier is not None and label == "majority":
            raise ValueError(
                "label: majority uses no verifier; set label: verifier, or name it as the oracle"
            )
        self.label, self.proposer_pay = label, proposer_pay
        self.verifier: Verifier = verifier or Matches()
        self.blocking = waits(self.verifier, oracle)
        self.oracle = oracle
        self.invalid, self.wrong, self.malformed = invalid, wrong, malformed
        self.forbidden = forbidden
        self.question_length, self.answer_length = question_length, answer_length
        self.answering = [a for a in self.possible_agents if a != PROPOSER]

    def default_task(self, rng: Random) -> Task:
        """Return a task to propose if there is a proposer, otherwise a small sum."""
        if PROPOSER in self.possible_agents:
            return Task(id="propose", payload={"mode": "propose"})
        return questions(count=1, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Begin with the proposal or, if the question is given, with the answers."""
        self.proposing = task.payload.get("mode") == "propose"
        if self.proposing and PROPOSER not in self.possible_agents:
            raise ValueError("a task to propose needs proposers: 1")
        self.problem = {} if self.proposing else dict(task.payload)
        self.question = "" if self.proposing else str(task.payload["question"])

    def acting(self) -> Sequence[str]:
        """Return the proposer, then all solvers and voters at once."""
        return [PROPOSER] if self.proposing else self.answering

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return the canonical answer to a given question; None for proposed questions."""
        if task.payload.get("mode") == "propose":
            return None
        return vote(self._read(action), self.verifier)

    def view(self, agent: str) -> Observation:
        """Return the question or, for a proposer, earlier questions or one to make easier."""
        if agent == PROPOSER:
            return proposer_view(self.task.payload)
        return question_view(self.question)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Check the proposal, or count and score the answers."""
        if PROPOSER in actions:
            self._propose(actions[PROPOSER])
        else:
            self._answer(actions)

    def _propose(self, action: Action | None) -> None:
        question = in_one_line(action or "")
        verdict = self._fault(question) or "valid"
        self.note(PROPOSER, verdict=verdict)
        self.measure(valid_proposal=verdict == "valid")
        if verdict != "valid":
            self.pay(PROPOSER, self.invalid)
            self.finish()
            return
        self.proposing, self.question, self.problem = False, question, {"question": question}

    def _fault(self, question: str) -> str | None:
        reason = fault(question, self.task.payload, self.question_length, self.forbidden)
        if reason or self.label != "verifier" or not isinstance(self.verifier, QuestionVerifier):
            return reason
        return self.verifier.fault(question)

    def _answer(self, actions: Mapping[str, Action | None]) -> None:
        said = {agent: self._read(action) for agent, action in actions.items()}
        answers = [answer for answer in said.values() if answer is not None]
        votes = [meaning(answer) for answer in answers]
        winner = majority(votes)
        agreed = answers[votes.index(winner)] if winner is not None else ""
        share = votes.count(winner) / len(said) if winner is not None else 0.0
        label = self._label(agreed)
        total, scored = 0.0, list[Mapping[str, float]]()
        for agent, answer in said.items():
            score, parts = (0.0, {}) if answer is None else self._scored(answer, label)
            self.note(agent, verdict="malformed" if answer is None else _verdict(score > 0.5))
            if agent.startswith("solver"):
                total += score
                scored.append(parts)
                pay = self.wrong + (1.0 - self.wrong) * score
                self.pay(agent, self.malformed if answer is None else pay)
        attempts = sum(agent.startswith("solver") for agent in said)
        rate = total / attempts
        if isinstance(self.verifier, Weighted):
            for name in self.verifier.parts:
                mean = sum(each.get(name, 0.0) for each in scored) / attempts
                self.measure(**{f"score/{name}": mean})
        self._measure(said, agreed, label, share, rate)
        if PROPOSER in self.possible_agents and self.task.payload.get("mode") == "propose":
            self._pay_proposer(share, rate, label)
        self.finish()

    def _label(self, agreed: str) -> str | None:
        """Return the right answer, None if it is unknown."""
        if "answer" in self.problem:
            return str(self.problem["answer"])
        return agreed or None if self.label == "majority" else None

    def _score(self, answer: str, label: str | None) -> float:
        return self._scored(answer, label)[0]

    def _scored(self, answer: str, label: str | None) -> tuple[float, Mapping[str, float]]:
        """Return the score of an answer, and the scores of the parts of a `Weighted` verifier."""
        if self.label == "majority":
            return float(label is not None and meaning(answer) == meaning(label)), {}
        if isinstance(self.verifier, Weighted):
            parts = self.verifier.scores(answer, self.problem)
            return self.verifier.mean(parts), parts
        return score_of(self.verifier, answer, self.problem), {}

    def _measure(
        self,
        said: Mapping[str, str | None],
        agreed: str,
        label: str | None,
        share: float,
        rate: float,
    ) -> None:
        # Counts for curricula: for a question without a label, the votes are the attempts. Voters
        # that are no solvers are not scored, so they are no attempts at a question with a label.
        voted = self.label == "majority" and "answer" not in self.problem
        attempts = len(said) if voted else sum(agent.startswith("solver") for agent in said)
        self.measure(
            solve_rate=rate,
            vote_share=share,
            attempts=attempts,
            solved=round((share if voted else rate) * attempts),
        )
        if not voted:
            self.measure(majority_accuracy=bool(agreed) and self._score(agreed, label) > 0.5)
        if self.oracle:
            solvers = [a for agent, a in said.items() if agent.startswith("solver")]
            true = [a is not None and score_of(self.oracle, a, self.problem) > 0.5 for a in solvers]
            self.measure(true_accuracy=sum(true) / len(true))
            if label is not None:
                self.measure(label_accuracy=score_of(self.oracle, label, self.problem) > 0.5)

    def _pay_proposer(self, share: float, rate: float, label: str | None) -> None:
        if self.proposer_pay == "learnability":
            self.pay(PROPOSER, learnability(rate))
        elif self.proposer_pay != "none":
            form = uncertainty if self.proposer_pay == "uncertainty" else minority
            self.pay(PROPOSER, form(share))
        if label is not None or self.label == "verifier":
            self.create(question_task(self.task.type, self.question, label))

    def _read(self, action: Action | None) -> str | None:
        said = read_argued(action, answer=self.answer_length, argument=0)
        return said["answer"] if said else None


def _verdict(right: bool) -> str:
    return "correct" if right else "wrong"


def seats(proposers: int, **answering: int) -> dict[str, int]:
    """Return the roles of an arena with questions; raises ValueError for wrong counts."""
    if proposers not in (0, 1) or answering["solver"] < 1 or min(answering.values()) < 0:
        raise ValueError("proposers must be 0 or 1, solvers at least 1, voters at least 0")
    roles = {"proposer": proposers, **answering}
    return {role: count for role, count in roles.items() if count}


def fault(
    question: str, payload: Mapping[str, Any], length: int, forbidden: frozenset[str] = frozenset()
) -> str | None:
    """Return the reason why a proposed question is invalid, or None.

    The reasons are malformed, too_long, held_out and copied.

    Args:
        question: The proposed question; "" if the move did not parse.
        payload: Payload of the task to propose; a copy of its `references` or `given` is invalid.
        length: Maximum characters of a question.
        forbidden: Ids of questions (see `question_task`) that may not be proposed.
    """
    if not question:
        return "malformed"
    if len(question) > length:
        return "too_long"
    if question_task("", question).id in forbidden:
        return "held_out"
    shown = [*payload.get("references", ()), *([payload["given"]] if payload.get("given") else ())]
    return "copied" if question in [str(each.get("question")) for each in shown] else None


def proposer_view(payload: Mapping[str, Any]) -> Observation:
    """Return the view of a proposer: the question to make easier, if `given`, or else earlier
    questions that it should not repeat."""
    given = str((payload.get("given") or {}).get("question", ""))
    shown = [str(each["question"]) for each in payload.get("references", ())]
    return Observation(
        text="\n".join([given] if given else shown), fields={"given": given, "references": shown}
    )


def question_view(question: str) -> Observation:
    """Return the view of a solver: the question alone."""
    return Observation(text=question, fields={"question": question})


def question_task(kind: str, question: str, answer: str | None = None) -> Task:
    """Return the task to answer a question; its id is a hash of the question's text."""
    name = blake2b(" ".join(question.split()).encode("utf-8", "replace"), digest_size=8).hexdigest()
    known = {} if answer is None else {"answer": answer}
    return Task(id=name, type=kind, payload={"mode": "solve", "question": question, **known})


def unlabelled(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks without answers, for training without labels."""
    return [question_task(task.type, str(task.payload["question"])) for task in tasks]


def names_of(tasks: Sequence[Task]) -> frozenset[str]:
    """Return the ids of the tasks' questions, for the argument `forbidden`."""
    return frozenset(task.id for task in unlabelled(tasks))


def raw_env(**settings: Any) -> Questions:
    """Return the arena without a wrapper."""
    return Questions(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
