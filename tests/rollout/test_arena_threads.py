"""Tests of arenas that advance in threads during the engine's steps, with equal results."""

import random
import threading
import time
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from selfplay.arena import Arena
from selfplay.engines import Engine
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.types import Action, Completion, Observation, Request, Status, StopReason, Task
from tests.helpers.command_process import LONGEST


class Walk(Arena):
    """A game of four moves; a subclass sets the time that each of them takes."""

    name = "walk"
    roles = {"player": 2}
    blocking = True

    def setup(self, task: Task, rng: Random) -> None:
        self.made = 0

    def acting(self) -> tuple[str, ...]:
        return ("player_0", "player_1")[: 1 + self.made % 2]

    def view(self, agent: str) -> Observation:
        return Observation(text=f"{agent}, move {self.made}")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.wait()
        if self.task.payload.get("fails") == self.made:
            raise ValueError("no luck")
        self.made += 1
        if self.made == 4:
            self.finish()

    def wait(self) -> None:
        """Wait for a service."""


class Slow(Walk):
    """A game whose moves take random times."""

    def wait(self) -> None:
        time.sleep(random.choice((0.0, 0.0, 0.002, 0.01)))


class Steps(Engine):
    """An engine whose requests take 1 to 6 steps; it records its requests and their steps."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.record: list[tuple[int, int, int]] = []
        """(step, number of the request, its seed) of every request."""
        self.steps = 0
        self.stepped = threading.Event()

    def add(self, request: Request) -> None:
        self.left[request.id] = 1 + request.seed % 6
        self.record.append((self.steps, request.id, request.seed))

    def step(self) -> list[Completion]:
        self.steps += 1
        self.stepped.set()
        self.left = {number: left - 1 for number, left in self.left.items()}
        done = [number for number, left in self.left.items() if not left]
        self.left = {number: left for number, left in self.left.items() if left}
        return [
            Completion(
                id=number,
                completion_ids=(number % 7,),
                logprobs=(0.0,),
                stop_reason=StopReason.STOP,
                text="go",
            )
            for number in done
        ]


def rollout(engine: Engine, arena: Any = Walk, **settings: Any) -> Rollout:
    agent_spec = AgentSpec(role=Role(), policy="p", renderer=ByteRenderer())
    return Rollout(
        arena=arena,
        agent_specs={"player": agent_spec},
        engines={"p": engine},
        settings=RolloutSettings(**settings),
    )


def specs(count: int, **payload: Any) -> list[EpisodeSpec]:
    return [EpisodeSpec(task=Task(id="t", payload=payload), seed=seed) for seed in range(count)]


@pytest.mark.parametrize("overlap", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("threads", [2, 16])
def test_requests_and_their_steps_do_not_depend_on_the_time_of_arenas(
    overlap: float, threads: int
) -> None:
    asked = [*specs(12), *specs(2, fails=1), *specs(6)]
    first = Steps()
    wanted = rollout(first, overlap=overlap, threads=threads).run(asked)
    assert [episode.status for episode in wanted].count(Status.FAILED) == 2
    for _ in range(3):
        engine = Steps()
        found = rollout(engine, Slow, overlap=overlap, threads=threads, max_live=20).run(asked)
        assert engine.record == first.record
        assert found == wanted


def test_without_overlap_the_engine_waits_and_plays_the_same_games() -> None:
    waiting, overlapping = Steps(), Steps()
    wanted = rollout(waiting, overlap=0.0).run(specs(10))
    found = rollout(overlapping, overlap=0.5).run(specs(10))
    assert [[turn.agent for turn in e.turns] for e in found] == [
        [turn.agent for turn in e.turns] for e in wanted
    ]
    assert sorted(seed for *_, seed in overlapping.record) == sorted(
        seed for *_, seed in waiting.record
    )
    assert overlapping.record != waiting.record


def test_the_engine_steps_while_an_arena_waits() -> None:
    """A move of one game waits for a step of the engine; without the overlap, none comes."""
    engine = Steps()

    class Patient(Walk):
        def wait(self) -> None:
            if self.seed == 3 and self.made == 1:
                engine.stepped.clear()
                assert engine.stepped.wait(LONGEST), "the engine made no step"

    episodes = rollout(engine, Patient, overlap=0.25).run(specs(8))
    assert {episode.status for episode in episodes} == {Status.FINISHED}


def test_an_arena_that_does_not_wait_advances_at_once() -> None:
    class Quick(Walk):
        blocking = False

        def wait(self) -> None:
            assert threading.current_thread() is threading.main_thread()

    assert rollout(Steps(), Quick).run(specs(5)) == rollout(Steps(), Quick, overlap=0.0).run(
        specs(5)
    )


@pytest.mark.parametrize("overlap", [-0.1, 1.1, float("nan")])
def test_an_overlap_that_is_no_fraction_is_refused(overlap: float) -> None:
    with pytest.raises(ValueError, match=r"^overlap: .* between 0 and 1 is needed"):
        rollout(Steps(), overlap=overlap)
