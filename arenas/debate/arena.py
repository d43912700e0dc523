"""Debate: debaters answer, see the others' answers and arguments, and answer again (2305.14325).

All debaters answer at once, round by round; the first round is independent. After the last round,
or when all agree, the answers are aggregated: by majority, or by a judge who reads the last round.
A verifier scores every answer, and the reward of an answer comes from its own score and those of
later rounds (MAPoRL, 2502.18439). With `aggregate: judge`, the judge is one more agent, which is
paid for a right verdict.

A debate between two sides before a judge is in `arenas.debate.judged`.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.debate.rewards import RIGHT, Horizon, Incentives, Whose, debate_return, persuasion
from arenas.questions.arithmetic import questions
from arenas.questions.verifiers import (
    Matches,
    Verifier,
    meaning,
    read_argued,
    score_of,
    vote,
    waits,
)
from arenas.quotes import quoted
from selfplay.arena import Arena
from selfplay.credit.rewards import majority, mean
from selfplay.errors import check_choice
from selfplay.types import Action, Metric, Observation, Task

JUDGE = "judge_0"
Aggregate = Literal["majority", "judge"]
NoVerdict = Literal["majority", "wrong"]


class Debate(Arena):
    """n debaters over R rounds, with an optional judge."""

    name = "debate_v0"
    optional_roles = ("judge",)
    services: ClassVar[tuple[str, ...]] = ("verifier",)
    measures = {
        "accuracy": Metric(unit="fraction", better="higher"),
        "first_accuracy": Metric(unit="fraction", better="higher"),
        "last_accuracy": Metric(unit="fraction", better="higher"),
        "first_majority": Metric(unit="fraction", better="higher"),
        "last_majority": Metric(unit="fraction", better="higher"),
        "consensus": Metric(unit="fraction"),
        "corrections": Metric(unit="fraction", better="higher"),
        "wrong_persuasions": Metric(unit="fraction", better="lower"),
        "conformity": Metric(unit="fraction"),
        "verdict": Metric(unit="fraction", better="higher"),
        "rounds": Metric(unit="count"),
        "verdict/none": Metric(unit="fraction", better="lower"),
    }
    chief = ("accuracy",)

    def __init__(
        self,
        *,
        verifier: Verifier | None = None,
        debaters: int = 3,
        rounds: int = 3,
        aggregate: Aggregate = "majority",
        stop_on_consensus: bool = True,
        horizon: Horizon = "discounted",
        whose: Whose = "all",
        discount: float = 0.3,
        incentives: Incentives | None = None,
        malformed: float = -1.0,
        no_verdict: NoVerdict = "majority",
        argument_length: int = 400,
        answer_length: int = 100,
    ) -> None:
        """Args:
        verifier: Scores answers; None: exact match with the task's `answer`.
        debaters: Number of debaters.
        rounds: Maximum answers per debater.
        aggregate: Method that turns the answers of the last round into one.
        stop_on_consensus: If true, the debate ends when all give the same answer.
        horizon: Rounds whose scores determine the reward of an answer: discounted (this and later
            ones), last, or current; docs/curricula.md has the formulas.
        whose: Debaters whose later scores count: all, or own (the author of the answer alone).
        discount: Weight of the next round's score, in [0, 1].
        incentives: Rewards for changes and influence, see `Incentives`; None: no such rewards.
        malformed: Added to the reward of a move without an answer; such a move has the score 0.
        no_verdict: Result of a judge's move without a verdict: the majority's answer, or a
            wrong one. The judge is paid `malformed` in both cases.
        argument_length: Maximum characters of an argument that the others see; the rest is cut off.
        answer_length: Maximum characters of an answer; a longer one is malformed.
        """
        judges = {"judge": 1} if aggregate == "judge" else {}
        super().__init__({"debater": debaters, **judges})
        for key, value, known in (
            ("aggregate", aggregate, Aggregate),
            ("horizon", horizon, Horizon),
            ("whose", whose, Whose),
            ("no_verdict", no_verdict, NoVerdict),
        ):
            check_choice(key, value, get_args(known))
        if min(debaters, rounds, answer_length) < 1 or argument_length < 0:
            raise ValueError(
                "debaters, rounds and answer_length are at least 1, argument_length at least 0"
            )
        if not 0 <= discount <= 1:
            raise ValueError(f"discount lies in [0, 1], not {discount}")
        self.verifier: Verifier = verifier or Matches()
        self.blocking = waits(self.verifier)
        self.rounds, self.aggregate, self.stop_on_consensus = rounds, aggregate, stop_on_consensus
        self.horizon, self.whose, self.discount = horizon, whose, discount
        self.incentives = incentives or Incentives()
        self.malformed, self.no_verdict = malformed, no_verdict
        self.argument_length, self.answer_length = argument_length, answer_length
        self.debaters = [agent for agent in self.possible_agents if agent != JUDGE]

    def default_task(self, rng: Random) -> Task:
        """Return a small sum."""
        return questions(count=1, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Read the question and clear the answers."""
        self.question = str(task.payload["question"])
        self.said: list[list[dict[str, str] | None]] = []
        self.scores: list[list[float]] = []
        self.judging = False

    def acting(self) -> Sequence[str]:
        """Return all debaters, then the judge."""
        return [JUDGE] if self.judging else self.debaters

    def messengers(self) -> Sequence[str]:
        """Return the debaters, whose answers and arguments the others see."""
        return () if self.judging else self.debaters

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return the answer of a debater or judge in canonical form."""
        said = self._read(action) or {}
        answer = self._read_verdict(action) if agent == JUDGE else said.get("answer")
        return vote(answer, self.verifier)

    def view(self, agent: str) -> Observation:
        """Return the question and the answers of the last round, the agent's own one and the
        others'."""
        if agent == JUDGE and not self.judging:
            return Observation(text="wait")
        last = dict(zip(self.debaters, self.said[-1] if self.said else [], strict=False))
        own = last.pop(agent, None)
        others = [entry for entry in last.values() if entry]
        return debater_view(self.question, len(self.said) + 1, self.rounds, own=own, others=others)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Score a round of answers or the verdict."""
        if self.judging:
            self._judge(actions[JUDGE])
            return
        said = [self._read(actions[agent]) for agent in self.debaters]
        payload = self.task.payload
        scores = [
            score_of(self.verifier, entry["answer"], payload) if entry else 0.0 for entry in said
        ]
        self.said.append(said)
        self.scores.append(scores)
        for agent, entry, score in zip(self.debaters, said, scores, strict=True):
            self.note(agent, verdict=_verdict(entry, score))
            if entry is None:
                self.pay(agent, self.malformed)
        agreed = None not in said and len(self._answers(-1)) == 1
        if len(self.said) < self.rounds and not (agreed and self.stop_on_consensus):
            return
        self.measure(consensus=agreed)
        self._pay_debaters()
        if self.aggregate == "judge":
            self.judging = True
        else:
            self._end(self._score(self._majority(-1)))

    def _read(self, action: Action | None) -> dict[str, str] | None:
        return read_argued(action, answer=self.answer_length, argument=self.argument_length)

    def _answers(self, round_number: int) -> dict[str, list[str]]:
        """Return the written answers of a round, grouped by meaning."""
        found: dict[str, list[str]] = {}
        for entry in self.said[round_number]:
            if entry:
                found.setdefault(meaning(entry["answer"]), []).append(entry["answer"])
        return found

    def _majority(self, round_number: int) -> str | None:
        """Return the most frequent answer; the first debater's one in a tie."""
        votes = [meaning(entry["answer"]) for entry in self.said[round_number] if entry]
        winner = majority(votes)
        return None if winner is None else self._answers(round_number)[winner][0]

    def _score(self, answer: str | None) -> float:
        return 0.0 if answer is None else score_of(self.verifier, answer, self.task.payload)

    def _pay_debaters(self) -> None:
        """Pay every answer separately, when all later answers are known."""
        for round_number in range(len(self.said)):
            for seat, agent in enumerate(self.debaters):
                worth = debate_return(
                    self.scores,
                    round_number,
                    seat,
                    horizon=self.horizon,
                    whose=self.whose,
                    discount=self.discount,
                )
                worth += self.incentives.change(self.scores, round_number, seat)
                worth += self.incentives.influence(self.scores, round_number, seat)
                self.pay(agent, worth, move=round_number)

    def _judge(self, action: Action | None) -> None:
        verdict = self._read_verdict(action)
        if not verdict:
            self.note(JUDGE, verdict="none")
            self.pay(JUDGE, self.malformed)
            fallback = self._majority(-1) if self.no_verdict == "majority" else None
            self._end(self._score(fallback), verdict=False)
            return
        score = self._score(verdict)
        self.note(JUDGE, verdict=_verdict({}, score))
        self.pay(JUDGE, score)
        self._end(score, verdict=True)

    def _read_verdict(self, action: Action | None) -> str:
        """Return the judge's answer, "" if there is none."""
        verdict = (action or "").strip()
        return verdict if len(verdict) <= self.answer_length else ""

    def _end(self, accuracy: float, **judged: bool) -> None:
        answers = [[meaning(e["answer"]) if e else None for e in row] for row in self.said]
        self.measure(
            accuracy=accuracy,
            rounds=len(self.said),
            first_accuracy=mean(self.scores[0]),
            last_accuracy=mean(self.scores[-1]),
            first_majority=self._score(self._majority(0)),
            last_majority=self._score(self._majority(-1)),
            **persuasion(answers, self.scores),
            **judged,
        )
        self.finish()


def debater_view(
    question: str,
    round_number: int,
    rounds: int,
    *,
    own: Mapping[str, str] | None,
    others: Sequence[Mapping[str, str]],
) -> Observation:
    """Return a debater's view of a round (numbered from 1): its own and the others' last answers.

    A judge sees the same, without an answer of its own.
    """
    own = own and _quoted(own)
    others = [_quoted(entry) for entry in others]
    answers = [entry["answer"] for entry in ([own] if own else []) + others]
    return Observation(
        text=" | ".join([question, *answers]),
        fields={
            "question": question,
            "round": round_number,
            "rounds": rounds,
            "own": own,
            "others": others,
        },
    )


def _quoted(entry: Mapping[str, str]) -> dict[str, str]:
    return {name: quoted(text) for name, text in entry.items()}


def _verdict(entry: Mapping[str, str] | None, score: float) -> str:
    """Return the verdict on an answer with this score; None is a move without an answer."""
    if entry is None:
        return "malformed"
    return "correct" if score > RIGHT else "wrong"


def raw_env(**settings: Any) -> Debate:
    """Return the arena without a wrapper."""
    return Debate(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
