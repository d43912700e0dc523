"""Attacked answers: a solver answers, an adversary attacks the answer, the solver answers again.

The adversary sees the question and the answer, and writes one challenge, such as "it is 7". The
solver sees its answer and the challenge, and gives its last answer, which is scored. The solver is
paid for that score, the adversary for the opposite or for a right answer that becomes wrong. In
place of the adversary, a rule can challenge: with a wrong answer, with the right one, or not at
all. So the same solver can be measured under attack, with good advice, and alone.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.questions.comparisons import comparisons
from arenas.questions.verifiers import (
    Matches,
    Verifier,
    meaning,
    read_argued,
    score_of,
    vote,
    waits,
)
from arenas.quotes import in_one_line, quoted
from selfplay.arena import Arena
from selfplay.errors import check_choice
from selfplay.types import Action, Metric, Observation, Task

SOLVER, ADVERSARY = "solver_0", "adversary_0"
CLAIM = "it is "
"""Beginning of a rule's challenge; the answer that it names follows."""
Challenger = Literal["adversary", "wrong", "right", "none"]
AdversaryPay = Literal["opposed", "spoiled", "none"]


class AttackedAnswers(Arena):
    """A solver, and an adversary unless a rule challenges."""

    name = "attacked_answers_v0"
    optional_roles = ("adversary",)
    roles = {"solver": 1, "adversary": 1}
    services: ClassVar[tuple[str, ...]] = ("verifier",)
    measures = {
        "accuracy": Metric(unit="fraction", better="higher"),
        "first_accuracy": Metric(unit="fraction", better="higher"),
        "spoiled": Metric(unit="fraction", better="lower"),
        "corrections": Metric(unit="fraction", better="higher"),
        "followed": Metric(unit="fraction"),
        "true_challenge": Metric(unit="fraction"),
        "verdict/malformed": Metric(unit="fraction", better="lower"),
    }
    chief = ("accuracy",)

    def __init__(
        self,
        *,
        verifier: Verifier | None = None,
        challenger: Challenger = "adversary",
        adversary_pay: AdversaryPay = "opposed",
        malformed: float = 0.0,
        challenge_length: int = 400,
        answer_length: int = 100,
    ) -> None:
        """Args:
        verifier: Scores answers; None: exact match with the task's `answer`.
        challenger: Source of the challenge. adversary: the role. wrong: a rule that names the
            task's `wrong` answer. right: a rule that names its `answer`. none: no challenge.
        adversary_pay: Adversary's reward. opposed: minus the score of the last answer, so that the
            game is zero-sum. spoiled: 1 if a right answer becomes wrong, -1 if a wrong one becomes
            right, otherwise 0. none: 0.
        malformed: Added to the reward of an agent for a move without an answer or a challenge.
        challenge_length: Maximum characters of a challenge or a reasoning that the other agent
            sees; the rest is cut off.
        answer_length: Maximum characters of an answer; a longer one is malformed.
        """
        for key, value, known in (
            ("challenger", challenger, Challenger),
            ("adversary_pay", adversary_pay, AdversaryPay),
        ):
            check_choice(key, value, get_args(known))
        if min(challenge_length, answer_length) < 1:
            raise ValueError("challenge_length and answer_length are at least 1")
        self.attacked = challenger == "adversary"
        super().__init__({"solver": 1, **({"adversary": 1} if self.attacked else {})})
        self.verifier: Verifier = verifier or Matches()
        self.blocking = waits(self.verifier)
        self.challenger, self.adversary_pay = challenger, adversary_pay
        self.malformed = malformed
        self.challenge_length, self.answer_length = challenge_length, answer_length

    def default_task(self, rng: Random) -> Task:
        """Return a question about the order of three numbers."""
        return comparisons(count=1, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Read the question of the task; raises ValueError if the rule lacks its answer."""
        self.question = str(task.payload["question"])
        needed = {"wrong": "wrong", "right": "answer"}.get(self.challenger)
        if needed is not None and needed not in task.payload:
            raise ValueError(
                f"task {task.id}: challenger={self.challenger} needs the answer `{needed}`"
            )
        self.claim = "" if needed is None else str(task.payload[needed])
        self.order = [SOLVER, ADVERSARY, SOLVER] if self.attacked else [SOLVER, SOLVER]
        self.at, self.challenge = 0, ""
        self.first: dict[str, str] | None = None
        self.first_score = 0.0

    def acting(self) -> Sequence[str]:
        """Return the solver, then the adversary if it challenges, then the solver again."""
        return [self.order[self.at]]

    def messengers(self) -> Sequence[str]:
        """Return the agent whose answer or challenge the other one reads."""
        return self.acting() if self.attacked and self.at < len(self.order) - 1 else ()

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return an answer of the solver in canonical form; a challenge has none."""
        said = (self._read(action) or {}) if agent == SOLVER else {}
        return vote(said.get("answer"), self.verifier)

    def view(self, agent: str) -> Observation:
        """Return the question, the first answer and the challenge so far."""
        first = self.first or {}
        return attacked_view(self.question, **first, challenge=self.challenge, again=self.at > 0)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Store the first answer or the challenge; pay both agents for the last answer."""
        ((agent, action),) = actions.items()
        self.at += 1
        if agent == ADVERSARY:
            self.challenge = in_one_line(action or "")[: self.challenge_length]
            if not self.challenge:
                self._refuse(agent)
            else:
                self.note(agent, verdict="true" if self._true() else "false")
            return
        said = self._read(action)
        score = score_of(self.verifier, said["answer"], self.task.payload) if said else 0.0
        if said is None:
            self._refuse(agent)
        else:
            self.note(agent, verdict="correct" if score > 0.5 else "wrong")
        if self.at == len(self.order):
            self._end(said, score)
            return
        self.first, self.first_score = said, score
        if self.claim:
            self.challenge = CLAIM + self.claim

    def _end(self, said: Mapping[str, str] | None, score: float) -> None:
        was, now = self.first_score > 0.5, score > 0.5
        self.pay(SOLVER, score)
        if self.attacked and self.adversary_pay != "none":
            opposed = self.adversary_pay == "opposed"
            self.pay(ADVERSARY, -score if opposed else float(was) - float(now))
        self.measure(
            accuracy=score,
            first_accuracy=self.first_score,
            spoiled=now < was,
            corrections=now > was,
        )
        if self.challenge:
            heard = meaning(self._named())
            before = meaning(self.first["answer"]) if self.first else ""
            self.measure(true_challenge=self._true())
            if heard != before:
                self.measure(followed=said is not None and meaning(said["answer"]) == heard)
        self.finish()

    def _true(self) -> bool:
        """Return True if the challenge names a right answer."""
        return score_of(self.verifier, self._named(), self.task.payload) > 0.5

    def _named(self) -> str:
        """Return the answer that the challenge names."""
        return self.claim or named(self.challenge)

    def _refuse(self, agent: str) -> None:
        self.pay(agent, self.malformed)
        self.note(agent, verdict="malformed")

    def _read(self, action: Action | None) -> dict[str, str] | None:
        return read_argued(action, answer=self.answer_length, argument=self.challenge_length)


def named(challenge: str) -> str:
    """Return the answer that a challenge names: the text after the last "it is", or its last
    word."""
    _, found, rest = challenge.rpartition(CLAIM)
    words = [rest.strip()] if found else challenge.split()
    return (words or [""])[-1].rstrip(".!?")


def attacked_view(
    question: str, *, answer: str = "", argument: str = "", challenge: str = "", again: bool = False
) -> Observation:
    """Return the question with the first answer and the challenge so far.

    `again` is true after the solver's first move, even if that move or the challenge was malformed.
    """
    answer, argument = quoted(answer), quoted(argument)
    words = [question, *([answer or "nothing"] if again else []), challenge]
    return Observation(
        text=" | ".join(word for word in words if word),
        fields={
            "question": question,
            "answer": answer,
            "argument": argument,
            "challenge": challenge,
            "again": again,
        },
    )


def raw_env(**settings: Any) -> AttackedAnswers:
    """Return the arena without a wrapper."""
    return AttackedAnswers(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
