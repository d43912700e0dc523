"""Arenas whose verifier waits for a service score the answers of several episodes at once."""

from collections.abc import Mapping
from random import Random
from threading import Barrier
from typing import Any

import pytest

from arenas.collaboration.pipeline import Pipeline
from arenas.debate.arena import Debate
from arenas.questions.arena import Questions, question_task
from arenas.questions.judged import JudgedQuestions
from arenas.questions.verifiers import Matches
from selfplay import AgentSpec, Arena, EpisodeSpec, Observation, Role, Rollout, RolloutSettings
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer


class Meeting:
    """A verifier that answers only if two episodes ask it at the same time."""

    blocking = True

    def __init__(self) -> None:
        self.barrier = Barrier(2, timeout=20)

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        self.barrier.wait()
        return float(answer == payload["answer"])


def seven(agent: str, observation: Observation, rng: Random) -> str:
    return '{"answer": "7"}'


def test_two_answers_are_scored_at_the_same_time() -> None:
    verifier = Meeting()
    rollout = Rollout(
        arena=lambda: Questions(proposers=0, solvers=1, label="verifier", verifier=verifier),
        agent_specs={"solver": AgentSpec(role=Role(), policy="p", renderer=ByteRenderer())},
        engines={"p": ScriptedEngine({"p": seven})},
        settings=RolloutSettings(threads=2),
    )
    tasks = [question_task("sum", "3 + 4", "7"), question_task("sum", "3 + 5", "8")]
    episodes = rollout.run([EpisodeSpec(task=task, seed=0) for task in tasks])
    assert [episode.turns[-1].reward for episode in episodes] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("waiting", "quick"),
    [
        (Debate(verifier=Meeting()), Debate(verifier=Matches())),
        (Pipeline(verifier=Meeting()), Pipeline()),
        (JudgedQuestions(rule=Meeting()), JudgedQuestions()),
        (Questions(oracle=Meeting()), Questions()),
    ],
)
def test_an_arena_waits_if_its_verifier_does(waiting: Arena, quick: Arena) -> None:
    assert waiting.blocking and not quick.blocking
    assert waiting.fork().blocking
