"""Tests of `Rollout.run` in several threads: the calls share places, engine and errors."""

import gc
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from threading import Event
from typing import Any
from weakref import WeakSet

from selfplay.arena import Arena
from selfplay.engines import Engine
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.types import (
    Action,
    Completion,
    Episode,
    Observation,
    Request,
    Status,
    StopReason,
    Task,
)
from tests.helpers.prefetched_batches import LONG, until


class Echo(Engine):
    """An engine that answers every request in the next step, or raises `error`."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.steps = self.forgot = 0
        self.error: Exception | None = None

    def add(self, request: Request) -> None:
        self.asked.append(request)

    def forget(self) -> None:
        self.forgot += 1

    def step(self) -> list[Completion]:
        Event().wait(0.001)
        self.steps += 1
        if self.error is not None:
            raise self.error
        asked, self.asked = self.asked, []
        return [
            Completion(
                id=request.id,
                completion_ids=(request.seed % 251,),
                logprobs=(0.0,),
                stop_reason=StopReason.STOP,
                text="on",
            )
            for request in asked
        ]


class Turns(Arena):
    """A game with the task's number of moves.

    With 0 moves, it ends after the test sets `gate`; with -1, it raises an error.
    """

    name = "turns"
    roles = {"player": 1}
    gate = Event()
    begun: list[str] = []

    def setup(self, task: Task, rng: Random) -> None:
        self.begun.append(task.id)
        self.left = task.payload["moves"]

    def acting(self) -> tuple[str, ...]:
        return ("player_0",)

    def view(self, agent: str) -> Observation:
        return Observation(text="go")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        if self.left < 0:
            raise ValueError("a broken game")
        self.left -= 1
        if self.left == 0 or (self.left < 0 and self.gate.is_set()):
            self.finish()
        elif self.left < 0:
            self.left = 0


def made(**settings: Any) -> tuple[Rollout, Echo, type[Turns]]:
    arena = type("Turns", (Turns,), {"gate": Event(), "begun": []})
    engine = Echo()
    agent_spec = AgentSpec(role=Role(), policy="base", renderer=ByteRenderer())
    rollout = Rollout(
        arena=arena,
        agent_specs={"player": agent_spec},
        engines={"base": engine},
        settings=RolloutSettings(max_waiting=0, **settings),
    )
    return rollout, engine, arena


def specs(step: int, *moves: int) -> list[EpisodeSpec]:
    return [
        EpisodeSpec(
            task=Task(id=f"{step}-{n}", payload={"moves": count}), seed=10 * step + n, step=step
        )
        for n, count in enumerate(moves)
    ]


def ids(episodes: list[Episode]) -> list[str]:
    return [episode.task.id for episode in episodes]


def test_games_of_a_later_call_begin_when_games_of_an_earlier_one_end() -> None:
    rollout, engine, arena = made(max_live=2)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(rollout.run, specs(1, 0, 2, 3))
        until(lambda: engine.steps > 10)  # all but the endless game have ended
        later = pool.submit(rollout.run, specs(2, 2, 1, 2))
        assert ids(later.result(LONG)) == ["2-0", "2-1", "2-2"]
        assert not first.done()
        arena.gate.set()
        assert ids(first.result(LONG)) == ["1-0", "1-1", "1-2"]
    assert engine.forgot == 1, "the queue was never empty"


def test_an_earlier_step_goes_first() -> None:
    rollout, engine, arena = made(max_live=1)
    with ThreadPoolExecutor(3) as pool:
        held = pool.submit(rollout.run, specs(1, 0))
        until(lambda: engine.steps > 2)
        late = pool.submit(rollout.run, specs(3, 1))
        until(lambda: len(rollout._loop._active) == 2)
        early = pool.submit(rollout.run, specs(2, 1))
        until(lambda: len(rollout._loop._active) == 3)
        arena.gate.set()
        for call in (held, late, early):
            call.result(LONG)
    assert arena.begun == ["1-0", "2-0", "3-0"]


def test_episodes_are_those_of_calls_one_after_another() -> None:
    rollout, _, _ = made(max_live=3)
    alone = [rollout.run(specs(step, 4, 1, 2, 3)) for step in (1, 2)]
    rollout, engine, arena = made(max_live=3)
    with ThreadPoolExecutor(3) as pool:
        held: Future[list[Episode]] = pool.submit(rollout.run, specs(9, 0))
        until(lambda: engine.steps > 2)
        calls = [pool.submit(rollout.run, specs(step, 4, 1, 2, 3)) for step in (1, 2)]
        assert [call.result(LONG) for call in calls] == alone
        arena.gate.set()
        held.result(LONG)


def test_a_game_that_has_ended_takes_no_memory_while_others_are_played() -> None:
    rollout, engine, arena = made(max_live=2)
    living, step, most = WeakSet[Arena](), engine.step, [0]

    class Counted(arena):  # type: ignore[misc,valid-type]
        def setup(self, task: Task, rng: Random) -> None:
            super().setup(task, rng)
            living.add(self)

    def counted() -> list[Completion]:
        gc.collect()
        most.append(len(living))
        return step()

    rollout.arena, engine.step = Counted, counted  # type: ignore[method-assign]
    assert len(rollout.run(specs(1, *[2] * 12))) == 12
    assert max(most) <= 3


def test_an_error_of_a_game_fails_this_game_only() -> None:
    rollout, engine, arena = made()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(rollout.run, specs(1, 0))
        until(lambda: engine.steps > 2)
        broken, whole = rollout.run(specs(2, -1, 2))
        arena.gate.set()
        (other,) = first.result(LONG)
    assert broken.status is Status.FAILED and "a broken game" in broken.error
    assert whole.status is other.status is Status.FINISHED


def test_an_error_of_the_engine_ends_all_calls() -> None:
    rollout, engine, _ = made()
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(rollout.run, specs(step, 0)) for step in (1, 2)]
        until(lambda: len(rollout._loop._active) == 2)
        engine.error = RuntimeError("the device is gone")
        assert {call.exception(LONG) for call in calls} == {engine.error}
    engine.error, engine.asked = None, []
    assert ids(rollout.run(specs(3, 1))) == ["3-0"]
