"""Tests of workers that die while they rest or wake, without Ray's processes."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from selfplay.errors import RunError
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.runtime.rollout_worker import RolloutResult
from selfplay.runtime.rollout_worker_group import RolloutWorkers
from selfplay.types import Task
from tests.helpers.builders import episode, turn

ray = pytest.importorskip("ray")

LOGS = "; its log is in /tmp/ray/session_1/logs on its machine"


class Worker:
    """A worker that dies in the phases that the test chooses: rest, wake or play."""

    def __init__(self, driver: "Driver", bundle: int) -> None:
        self.driver, self.bundle = driver, bundle
        self.count, self.resting, self.dead = 0, False, False

    def rest(self) -> int:
        self.reach("rest")
        self.resting = True
        return self.count

    def steps(self) -> int:
        return self.count

    def run(self, specs: Sequence[EpisodeSpec], *given: Any) -> RolloutResult:
        if self.resting:
            self.reach("wake")
        self.resting = False
        self.count += 3
        self.reach("play")
        played = [episode(turn("solver_0", 1.0), task=spec.task, seed=spec.seed) for spec in specs]
        return RolloutResult(episodes=played, counts={})

    def reach(self, phase: str) -> None:
        self.dead = self.dead or (self.bundle, phase) in self.driver.deaths
        if self.dead:
            # A death costs only one worker: its replacement plays the same specs to their end.
            self.driver.deaths -= {(self.bundle, "wake"), (self.bundle, "play")}
            raise ray.exceptions.RayActorError()


class Driver:
    """The driver's side of two workers; `wait` runs the methods of the workers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deaths = set[tuple[int, str]]()
        """Pairs (index of a worker, phase) in which a worker dies."""
        self.notes: list[str] = []
        self.ray, self.exceptions, self.log_hint = self, ray.exceptions, LOGS
        cluster: Any = self
        self.workers = RolloutWorkers(
            cluster, count=2, chunks=1, timeout=300, max_restarts=2, note=self.notes.append
        )
        monkeypatch.setattr(self.workers, "_ask", self.ask)
        monkeypatch.setattr(self.workers, "_start", self.start)

    def start(self, member: Any) -> None:
        member.actor = Worker(self, member.bundle)

    def ask(self, member: Any, method: str, *given: Any, thread: str) -> Any:
        return Question(member.actor, method, given)

    def wait(self, asked: list[Any], **how: Any) -> tuple[list[Any], list[Any]]:
        ready = [each for each in asked if each.is_answered()]
        return ready, [each for each in asked if each not in ready]

    def get(self, question: Any, timeout: float | None = None) -> Any:
        if isinstance(question.answer, Exception):
            raise question.answer
        return question.answer

    def check(self, *, now: bool = False) -> None:
        """Do nothing, as if Ray were alive."""

    def kill(self, actor: Any) -> None:
        """Do nothing."""

    def turn(self, step: int) -> None:
        """Let the workers play a step, and then rest."""
        tasks = [Task(id=f"{step}-{number}") for number in range(4)]
        asked = [EpisodeSpec(task=task, seed=n, step=step) for n, task in enumerate(tasks)]
        assert [each.task for each in self.workers.run(asked)] == tasks
        self.workers.rest()

    def row(self) -> list[int]:
        return [member.rest_deaths for member in self.workers._members]


class Question:
    """A call of a worker; it is answered at the third check, and `steps` at the first."""

    def __init__(self, actor: Worker, method: str, given: Sequence[Any]) -> None:
        self.actor, self.method, self.given = actor, method, given
        self.checks, self.answer = 0, None

    def is_answered(self) -> bool:
        self.checks += 1
        if self.checks == 1:
            try:
                self.answer = getattr(self.actor, self.method)(*self.given)
            except ray.exceptions.RayError as error:
                self.answer = error
        return self.checks > 2 or self.method == "steps"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


@pytest.mark.parametrize("phase", ["rest", "wake"])
def test_a_worker_that_dies_at_each_rest_ends_the_run_in_one_line(
    driver: Driver, phase: str
) -> None:
    """Between the deaths, its replacements finish every step."""
    driver.turn(0)
    with pytest.raises(RunError) as raised:
        for step in range(1, 9):
            driver.deaths = {(1, phase)}
            driver.turn(step)
    assert re.fullmatch(
        r"runtime: worker 1 died 3 times in a row while it rested or woke \(runtime.max_restarts "
        rf"is 2\); the last time: RayActorError: .+{re.escape(LOGS)}",
        str(raised.value),
    )
    assert step == 3 and driver.workers.counts()["runtime/worker_deaths"] == 3
    assert [line.partition(" and is")[0] for line in driver.notes] == [
        "runtime: worker 1 was lost"
    ] * 2


@pytest.mark.parametrize("phase", ["rest", "wake"])
def test_rare_deaths_in_a_long_run_are_not_added_up(driver: Driver, phase: str) -> None:
    rows = []
    for step in range(24):
        # Each worker dies twice in a row, and then survives two steps.
        driver.deaths = set() if step % 4 in (0, 3) else {(1, phase), (0, phase)}
        driver.turn(step)
        rows.append(driver.row())
    assert max(map(max, rows)) == 2 == driver.workers.max_restarts
    assert driver.workers.counts()["runtime/worker_deaths"] == 24


def test_a_worker_that_dies_during_play_does_not_count_as_resting(driver: Driver) -> None:
    """A death during play does not count as one at rest, also if the worker rested before."""
    for step in range(8):
        driver.deaths = {(1, "play")}
        driver.turn(step)
        assert driver.row() == [0, 0]
    assert driver.workers.counts()["runtime/worker_deaths"] == 8


def test_deaths_of_different_workers_are_counted_apart(driver: Driver) -> None:
    driver.turn(0)
    for step in range(1, 6):
        driver.deaths = {(step % 2, "rest")}
        driver.turn(step)
    assert driver.workers.counts()["runtime/worker_deaths"] == 5
