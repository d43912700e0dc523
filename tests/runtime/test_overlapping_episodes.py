"""Tests of rollout workers that play jobs of several steps at the same time, without Ray."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from selfplay.errors import ConfigError, RunError
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.runtime.rollout_worker import RolloutResult, RolloutWorker
from selfplay.runtime.rollout_worker_group import RolloutWorkers
from selfplay.runtime.updatable_engine import UpdateQueue
from selfplay.runtime.weight_sync import AddPolicy, Change, OffloadPolicy, UpdateWeights
from selfplay.types import Episode, Task
from tests.helpers.builders import episode, turn
from tests.helpers.prefetched_batches import LONG, until

ray = pytest.importorskip("ray")


class Ask:
    """A call of a worker, and the answer that the test gives."""

    def __init__(self, member: Any, specs: Sequence[EpisodeSpec]) -> None:
        self.member, self.specs = member, specs
        self.answer: RolloutResult | Exception | None = None

    def play(self) -> None:
        played = [
            episode(turn("solver_0", 1.0), task=spec.task, seed=spec.seed) for spec in self.specs
        ]
        self.answer = RolloutResult(episodes=played, counts={"played": float(len(played))})


class Driver:
    """The driver's side of two workers whose answers the test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Ask] = []
        self.started = 0
        package = SimpleNamespace(wait=self.wait, get=self.get, exceptions=ray.exceptions)
        cluster: Any = SimpleNamespace(
            ray=package, check=lambda now=False: None, kill=self.kill, log_hint="; see its log"
        )
        self.notes: list[str] = []
        self.workers = RolloutWorkers(
            cluster, count=2, chunks=1, timeout=300, max_restarts=1, note=self.notes.append
        )
        monkeypatch.setattr(self.workers, "_ask", self.ask)
        monkeypatch.setattr(self.workers, "_start", self.start)

    def ask(self, member: Any, method: str, *given: Any, thread: str) -> Any:
        if method != "run":
            return method
        self.asked.append(Ask(member, given[0]))
        return self.asked[-1]

    def start(self, member: Any) -> None:
        self.started += 1
        member.actor = object()

    def kill(self, actor: object) -> None:
        """Do nothing."""

    def wait(self, asked: list[Any], **how: Any) -> tuple[list[Any], list[Any]]:
        threading.Event().wait(0.001)
        ready = [each for each in asked if isinstance(each, Ask) and each.answer is not None]
        return ready, [each for each in asked if each not in ready]

    def get(self, reference: Any, timeout: float) -> Any:
        if isinstance(reference.answer, Exception):
            raise reference.answer
        return reference.answer

    def of(self, step: int) -> list[Ask]:
        return [each for each in self.asked if each.specs[0].step == step]


def specs(step: int) -> list[EpisodeSpec]:
    return [EpisodeSpec(task=Task(id=f"{step}-{n}"), seed=n, step=step) for n in range(4)]


def ids(call: "Future[list[Episode]]") -> list[str]:
    return [each.task.id for each in call.result(LONG)]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def test_a_later_step_goes_to_workers_that_still_play(driver: Driver) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(driver.workers.run, specs(1))
        until(lambda: len(driver.of(1)) == 2)
        later = pool.submit(driver.workers.run, specs(2))
        until(lambda: len(driver.of(2)) == 2)
        assert {len(member.playing) for member in driver.workers._members} == {2}
        for each in driver.of(2):
            each.play()
        assert ids(later) == ["2-0", "2-1", "2-2", "2-3"] and not first.done()
        for each in driver.of(1):
            each.play()
        assert ids(first) == ["1-0", "1-1", "1-2", "1-3"]
    assert driver.workers.counts()["played"] == 8


def test_an_evaluation_has_the_workers_for_itself(driver: Driver) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(driver.workers.run, specs(1))
        until(lambda: len(driver.of(1)) == 2)
        evaluation = pool.submit(driver.workers.run, specs(0), "held_out")
        threading.Event().wait(0.05)
        assert not driver.of(0)
        for each in driver.of(1):
            each.play()
        until(lambda: len(driver.of(0)) == 2)
        assert first.done()
        for each in driver.of(0):
            each.play()
        assert len(evaluation.result(LONG)) == 4
    assert driver.workers.counts()["played"] == 4


def test_a_worker_that_dies_loses_its_chunks_of_all_steps(driver: Driver) -> None:
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(driver.workers.run, specs(step)) for step in (1, 2)]
        until(lambda: len(driver.asked) == 4)
        victim, before = driver.asked[0].member, driver.started
        lost = [each for each in driver.asked if each.member is victim]
        for each in lost:
            each.answer = ray.exceptions.RayActorError()
        until(lambda: len(driver.asked) == 6)
        assert driver.started == before + 1
        for each in driver.asked:
            if each not in lost:
                each.play()
        assert [ids(call) for call in calls] == [[f"{s}-{n}" for n in range(4)] for s in (1, 2)]
    counts = driver.workers.counts()
    assert (counts["runtime/worker_deaths"], counts["runtime/resubmitted_episodes"]) == (1, 4)
    assert counts["played"] == 8
    (line,) = driver.notes
    assert line.startswith(f"runtime: worker {victim.bundle} was lost and is replaced: RayActorErr")
    assert line.endswith("; see its log")


def test_the_death_that_ends_a_run_is_reported_once(driver: Driver) -> None:
    driver.workers.max_restarts = 0
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(driver.workers.run, specs(1))
        until(lambda: len(driver.asked) == 2)
        driver.asked[0].answer = ray.exceptions.RayActorError()
        with pytest.raises(RunError, match=r"the last one: RayActorError: .*; see its log$"):
            call.result(LONG)
    assert driver.notes == []


def test_an_error_of_the_jobs_ends_all_calls_and_others_can_be_played(driver: Driver) -> None:
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(driver.workers.run, specs(step)) for step in (1, 2)]
        until(lambda: len(driver.asked) == 4)
        fault = ray.exceptions.RayTaskError("run", "", ConfigError("a wrong setting; change it"))
        driver.asked[3].answer = fault
        for call in calls:
            assert isinstance(call.exception(LONG), ConfigError)
        driver.asked.clear()
        again = pool.submit(driver.workers.run, specs(3))
        until(lambda: len(driver.asked) == 2)
        for each in driver.asked:
            each.play()
        assert len(again.result(LONG)) == 4


def test_a_runtime_that_was_closed_plays_no_more(driver: Driver) -> None:
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(driver.workers.run, specs(1))
        until(lambda: len(driver.asked) == 2)
        driver.workers._closed = True
        assert isinstance(call.exception(LONG), RunError)


# The worker's side -----------------------------------------------------------------------------


class HeldWorker:
    """A worker whose rollouts last until the test ends them."""

    def __init__(self) -> None:
        self.worker = RolloutWorker()
        self.playing: dict[str, threading.Event] = {}
        self.applied = 0
        inbox = UpdateQueue()
        held = (AddPolicy, OffloadPolicy)
        self.inbox = inbox
        engine: Any = SimpleNamespace(
            wake=lambda: None, catch_up=self.catch_up, holds_updates=lambda: inbox.holds(held)
        )
        rollout = SimpleNamespace(run=self.run)
        setup: Any = SimpleNamespace(rollout=rollout, rollouts={"now": rollout}, drain_counts=dict)
        self.worker._inbox, self.worker._engine, self.worker._setup = inbox, engine, setup
        self.worker._begun.set()

    def catch_up(self) -> None:
        assert not self.playing
        self.applied += len(self.inbox.take())

    def run(self, given: Sequence[EpisodeSpec]) -> list[Episode]:
        gate = self.playing[given[0].task.id] = threading.Event()
        assert gate.wait(LONG)
        del self.playing[given[0].task.id]
        return []

    def end(self, name: str) -> None:
        self.playing[name].set()
        until(lambda: name not in self.playing)


def weights(number: int) -> UpdateWeights:
    return UpdateWeights(policy="base", weights=None, version=number, checksums={})


@pytest.mark.parametrize(
    ("changes", "joins"),
    [
        ([], True),
        ([weights(1)], True),
        ([OffloadPolicy(policy="base@1")], True),
        ([AddPolicy(policy="base@1", player="base")], False),
        ([OffloadPolicy(policy="base"), weights(1)], False),
    ],
)
def test_jobs_join_unless_they_need_an_update_that_waits(
    changes: Sequence[Change], joins: bool
) -> None:
    held_worker = HeldWorker()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(held_worker.worker.run, specs(1), None, 0)
        until(lambda: "1-0" in held_worker.playing)
        for number, change in enumerate(changes, start=1):
            held_worker.inbox.put(number, change)
        later = pool.submit(held_worker.worker.run, specs(2), None, len(changes))
        if joins:
            until(lambda: "2-0" in held_worker.playing)
        else:
            threading.Event().wait(0.05)
            assert "2-0" not in held_worker.playing
        held_worker.end("1-0")
        first.result(LONG)
        until(lambda: "2-0" in held_worker.playing)
        assert joins or held_worker.applied == len(changes)
        held_worker.end("2-0")
        later.result(LONG)
    assert held_worker.applied == len(changes)


def test_an_evaluation_does_not_play_during_training() -> None:
    held_worker = HeldWorker()
    with ThreadPoolExecutor(2) as pool:
        pool.submit(held_worker.worker.run, specs(1), None, 0)
        until(lambda: "1-0" in held_worker.playing)
        evaluation = pool.submit(held_worker.worker.run, specs(0), "now", 0)
        threading.Event().wait(0.05)
        assert list(held_worker.playing) == ["1-0"]
        held_worker.end("1-0")
        until(lambda: "0-0" in held_worker.playing)
        held_worker.end("0-0")
        evaluation.result(LONG)
