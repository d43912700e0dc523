"""Delegation: a planner answers a question, or calls workers with questions of its own first.

Each call makes a worker: a new agent that sees nothing but the planner's words, and whose answer
is shown to the planner. So the number of agents differs between episodes, up to a maximum. The
planner may call again, or answer. All agents of the episode are paid the score of the planner's
answer minus a cost for each worker. MATPO (2510.04678) divides work in this way; its credit method
is `selfplay.credit.team`.

Version history: v0, first version.
"""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.collaboration.sum_parts import SameValues, sum_parts, values_in
from arenas.questions.verifiers import Matches, Verifier, score_of, vote, waits
from arenas.quotes import quoted
from selfplay.arena import Arena
from selfplay.tools.call_format import defused
from selfplay.types import Action, Metric, Observation, Task, well_formed

PLANNER = "planner_0"
UNREADABLE, TOO_MANY, TOO_LONG, EMPTY = "unreadable", "too_many_calls", "too_long", "empty"
FAULTS = (UNREADABLE, TOO_MANY, TOO_LONG, EMPTY)
"""Reasons for which a move of the planner is refused."""


class Delegation(Arena):
    """A planner, and the workers that it calls during the episode."""

    name = "delegation_v0"
    optional_roles = ("worker",)
    services: ClassVar[tuple[str, ...]] = ("verifier",)
    measures = {
        "accuracy": Metric(unit="fraction", better="higher"),
        "workers": Metric(unit="count"),
        "delegated": Metric(unit="fraction"),
        "answered": Metric(unit="fraction", better="higher"),
        "worker_answers": Metric(unit="fraction", better="higher"),
        "refused": Metric(unit="count", better="lower"),
        "verdict/called": Metric(unit="fraction"),
        "verdict/too_late": Metric(unit="fraction", better="lower"),
        **{f"verdict/{fault}": Metric(unit="fraction", better="lower") for fault in FAULTS},
    }
    chief = ("accuracy", "workers")

    def __init__(
        self,
        *,
        workers: int = 3,
        turns: int = 3,
        cost: float = 0.0,
        verifier: Verifier | None = None,
        question_length: int = 500,
        answer_length: int = 100,
    ) -> None:
        """Args:
        workers: Largest number of workers in an episode; 0 for a planner alone.
        turns: Largest number of moves of the planner. If the planner has not answered by then, the
            episode is paid like one with a wrong answer.
        cost: Cost of each worker, subtracted from the reward of every agent of the episode.
        verifier: Scores the planner's answer; None: the score is 1 if the answer's values equal
            those of the task's `answer`, in order (`SameValues`).
        question_length: Maximum characters of a question to a worker; a longer one is refused.
        answer_length: Maximum characters of an answer. A longer one of the planner is refused, and
            a longer one of a worker counts as no answer.
        """
        if workers < 0 or min(turns, question_length, answer_length) < 1:
            raise ValueError(
                "workers is at least 0; turns, question_length and answer_length at least 1"
            )
        super().__init__({"planner": 1, **({"worker": workers} if workers else {})})
        self.workers, self.turns, self.cost = workers, turns, cost
        self.verifier: Verifier = verifier or SameValues()
        self.blocking = waits(self.verifier)
        self.question_length, self.answer_length = question_length, answer_length

    def default_task(self, rng: Random) -> Task:
        """Return a question of two sums."""
        return sum_parts(count=1, parts=2, seed=rng.randrange(2**32))[0]

    def starting_agents(self, task: Task) -> list[str]:
        """Return the planner: workers enter when they are called."""
        return [PLANNER]

    def setup(self, task: Task, rng: Random) -> None:
        """Read the question of the task."""
        self.question = str(task.payload["question"])
        self.asked: dict[str, str] = {}
        """Question by worker, in the order of the calls."""
        self.answers: dict[str, str] = {}
        """Answer by worker; "" if a worker gave none."""
        self.fault = ""
        self.moves, self.refused = 0, 0

    def acting(self) -> Sequence[str]:
        """Return the workers without an answer, otherwise the planner."""
        return [each for each in self.asked if each not in self.answers] or [PLANNER]

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return the values in the planner's answer; "" for calls and for workers.

        Returns None if the verifier does not compare answers with the task's `answer`.
        """
        said = read_plan(action) if agent == PLANNER else {}
        answer = str(said.get("answer", ""))
        if isinstance(self.verifier, SameValues):
            return values_in(answer)
        return vote(answer, self.verifier) if isinstance(self.verifier, Matches) else None

    def view(self, agent: str) -> Observation:
        """Return a worker's question, or the planner's questions and their answers so far."""
        if agent != PLANNER:
            return worker_view(self.asked[agent])
        return planner_view(
            self.question,
            [(self.asked[worker], answer) for worker, answer in self.answers.items()],
            left=self.workers - len(self.asked),
            turns_left=self.turns - self.moves,
            fault=self.fault,
        )

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Keep the workers' answers, or carry out the planner's decision."""
        if PLANNER in actions:
            self._decide(actions[PLANNER])
            return
        for worker, action in actions.items():
            answer = (action or "").strip()
            good = 0 < len(answer) <= self.answer_length
            self.answers[worker] = quoted(defused(answer)) if good else ""
            self.note(worker, verdict="answered" if good else "malformed")

    def _decide(self, action: Action | None) -> None:
        said = read_plan(action)
        self.moves += 1
        self.fault = self._fault(said)
        if "answer" in said and not self.fault:
            score = score_of(self.verifier, said["answer"], self.task.payload)
            self.note(PLANNER, verdict="correct" if score > 0.5 else "wrong")
            self._end(score, answered=True)
            return
        self.refused += bool(self.fault)
        last = self.moves == self.turns
        self.note(PLANNER, verdict=self.fault or ("too_late" if last else "called"))
        if last:
            self._end(0.0, answered=False)
        elif not self.fault:
            for asked in said["calls"]:
                worker = f"worker_{len(self.asked)}"
                self.add(worker)
                self.asked[worker] = defused(asked)

    def _fault(self, said: Mapping[str, Any]) -> str:
        """Return the reason why a move of the planner is refused, "" if it is not."""
        if not said:
            return UNREADABLE
        if "answer" in said:
            return TOO_LONG if len(said["answer"]) > self.answer_length else ""
        calls: Sequence[str] = said["calls"]
        if len(calls) > self.workers - len(self.asked):
            return TOO_MANY
        if not all(each.strip() for each in calls):
            return EMPTY
        return TOO_LONG if max(map(len, calls)) > self.question_length else ""

    def _end(self, score: float, *, answered: bool) -> None:
        called = len(self.asked)
        for agent in self.agents:
            self.pay(agent, score - self.cost * called)
        self.measure(
            accuracy=score,
            workers=called,
            delegated=called > 0,
            answered=answered,
            refused=self.refused,
        )
        if called:
            self.measure(worker_answers=sum(map(bool, self.answers.values())) / called)
        self.finish()


def read_plan(action: Action | None) -> dict[str, Any]:
    """Return {"answer": text} or {"calls": [text, ...]} from a JSON action; {} if it is neither."""
    try:
        said = json.loads(action or "")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(said, dict) or len(said) != 1:
        return {}
    answer, calls = said.get("answer"), said.get("calls")
    if isinstance(answer, str) and answer.strip():
        return {"answer": well_formed(answer.strip())}
    if isinstance(calls, list) and calls and all(isinstance(each, str) for each in calls):
        return {"calls": [well_formed(each.strip()) for each in calls]}
    return {}


def planner_view(
    question: str,
    heard: Sequence[tuple[str, str]] = (),
    *,
    left: int,
    turns_left: int,
    fault: str = "",
) -> Observation:
    """Return the view of the planner.

    Args:
        question: The question of the task.
        heard: Questions and answers of the workers so far; "" for no answer.
        left: Number of workers that can still be called.
        turns_left: Number of moves left, this one included.
        fault: Reason why the last move was refused, one of `FAULTS`; "" if it was not.
    """
    lines = [question, *(f"{asked} = {answer or 'nothing'}" for asked, answer in heard)]
    lines += [f"refused: {fault}"] if fault else []
    return Observation(
        text="\n".join(lines),
        fields={
            "question": question,
            "heard": [{"question": asked, "answer": answer} for asked, answer in heard],
            "workers_left": left,
            "turns_left": turns_left,
            "fault": fault,
        },
    )


def worker_view(question: str) -> Observation:
    """Return the view of a worker: the planner's words alone."""
    return Observation(text=question, fields={"question": question})


def raw_env(**settings: Any) -> Delegation:
    """Return the arena without a wrapper."""
    return Delegation(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
