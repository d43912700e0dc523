"""Pipeline of three agents: a generator answers, a verifier criticises, a refiner answers again.

This is the pipeline of MALT (2412.01928). All three agents are paid the score of the refiner's
answer. With tree sampling (n branches at each of the three stages) and `credit: preference`, the
value of a critique is the mean score of its refinements, and the value of a generation is the mean
value of its critiques.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.questions.arithmetic import questions
from arenas.questions.verifiers import Matches, Verifier, read_argued, score_of, vote, waits
from selfplay.arena import Arena
from selfplay.types import Action, Metric, Observation, Task

GENERATOR, VERIFIER, REFINER = "generator_0", "verifier_0", "refiner_0"


class Pipeline(Arena):
    """Generator, verifier and refiner, with one move each."""

    name = "pipeline_v0"
    roles = {"generator": 1, "verifier": 1, "refiner": 1}
    services: ClassVar[tuple[str, ...]] = ("verifier",)
    measures = {
        "accuracy": Metric(unit="fraction", better="higher"),
        "first_accuracy": Metric(unit="fraction", better="higher"),
        "corrections": Metric(unit="fraction", better="higher"),
        "spoiled": Metric(unit="fraction", better="lower"),
    }
    chief = ("accuracy",)

    def __init__(
        self,
        *,
        verifier: Verifier | None = None,
        malformed: float = 0.0,
        argument_length: int = 2000,
        answer_length: int = 100,
    ) -> None:
        """Args:
        verifier: Scores answers; None: exact match with the task's `answer`. (It is not the
            agent of the same name.)
        malformed: Added to the reward of an agent whose move contains no answer or critique.
        argument_length: Maximum characters of a reasoning or a critique that the next agent sees;
            the rest is cut off.
        answer_length: Maximum characters of an answer; a longer one is malformed.
        """
        super().__init__()
        if min(argument_length, answer_length) < 1:
            raise ValueError("argument_length and answer_length are at least 1")
        self.verifier: Verifier = verifier or Matches()
        self.blocking = waits(self.verifier)
        self.malformed = malformed
        self.argument_length, self.answer_length = argument_length, answer_length

    def default_task(self, rng: Random) -> Task:
        """Return a small sum."""
        return questions(count=1, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Read the question of the task."""
        self.question = str(task.payload["question"])
        self.first: dict[str, str] = {}
        self.critique = ""
        self.at = 0
        self.first_score = 0.0

    def acting(self) -> Sequence[str]:
        """Return the next of the three agents."""
        return [self.possible_agents[self.at]]

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return the answer of a generator or refiner; a critique has none."""
        said = (self._read(action) or {}) if agent != VERIFIER else {}
        return vote(said.get("answer"), self.verifier)

    def view(self, agent: str) -> Observation:
        """Return the question, the first answer and the critique so far."""
        return pipeline_view(self.question, **self.first, critique=self.critique)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Store the answer or critique; after the refiner, pay all agents."""
        ((agent, action),) = actions.items()
        self.at += 1
        if agent == VERIFIER:
            self.critique = (action or "").strip()[: self.argument_length]
            if not self.critique:
                self._refuse(agent)
            return
        said = self._read(action)
        score = score_of(self.verifier, said["answer"], self.task.payload) if said else 0.0
        if said is None:
            self._refuse(agent)
        else:
            self.note(agent, verdict="correct" if score > 0.5 else "wrong")
        if agent == GENERATOR:
            self.first, self.first_score = said or {}, score
            return
        for each in self.possible_agents:
            self.pay(each, score)
        was, now = self.first_score > 0.5, score > 0.5
        self.measure(
            accuracy=score,
            first_accuracy=self.first_score,
            corrections=now > was,
            spoiled=now < was,
        )
        self.finish()

    def _refuse(self, agent: str) -> None:
        self.pay(agent, self.malformed)
        self.note(agent, verdict="malformed")

    def _read(self, action: Action | None) -> dict[str, str] | None:
        return read_argued(action, answer=self.answer_length, argument=self.argument_length)


def pipeline_view(
    question: str, *, answer: str = "", argument: str = "", critique: str = ""
) -> Observation:
    """Return the question with the first answer and the critique so far."""
    return Observation(
        text=" | ".join(word for word in (question, answer, critique) if word),
        fields={
            "question": question,
            "answer": answer,
            "argument": argument,
            "critique": critique,
        },
    )


def raw_env(**settings: Any) -> Pipeline:
    """Return the arena without a wrapper."""
    return Pipeline(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
