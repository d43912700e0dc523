"""Workers that die while they rest or wake, without Ray's processes."""

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
    """A worker that dies in a phase of the test: rest, wake or play."""

    def __init__(self, office: "Office", bundle: int) -> None:
        self.office, self.bundle = office, bundle
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
        self.dead = self.dead or (self.bundle, phase) in self.office.deadly
        if self.dead:
            # A death costs only one worker: its replacement plays the same specs to their end.
            self.office.deadly -= {(self.bundle, "wake"), (self.bundle, "play")}
            raise ray.exceptions.RayActorError()


class Office:
    """The driver side of two workers, whose methods are called when their results are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deadly = set[tuple[int, str]]()
        """Worker and phase of each death to come."""
        self.said: list[str] = []
        self.ray, self.exceptions, self.log_hint = self, ray.exceptions, LOGS
        cluster: Any = self
        self.workers = RolloutWorkers(
            cluster, count=2, chunks=1, timeout=300, max_restarts=2, note=self.said.append
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
        """Ray lives."""

    def kill(self, actor: Any) -> None:
        """The actor is gone."""

    def turn(self, step: int) -> None:
        """Let the workers play a step, and then rest."""
        tasks = [Task(id=f"{step}-{number}") for number in range(4)]
        asked = [EpisodeSpec(task=task, seed=n, step=step) for n, task in enumerate(tasks)]
        assert [each.task for each in self.workers.run(asked)] == tasks
        self.workers.rest()

    def row(self) -> list[int]:
        return [member.rest_deaths for member in self.workers._members]


class Question:
    """A call of a worker, and its answer from the third look on."""

    def __init__(self, actor: Worker, method: str, given: Sequence[Any]) -> None:
        self.actor, self.method, self.given = actor, method, given
        self.looks, self.answer = 0, None

    def is_answered(self) -> bool:
        self.looks += 1
        if self.looks == 1:
            try:
                self.answer = getattr(self.actor, self.method)(*self.given)
            except ray.exceptions.RayError as error:
                self.answer = error
        return self.looks > 2 or self.method == "steps"


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Office:
    return Office(monkeypatch)


@pytest.mark.parametrize("phase", ["rest", "wake"])
def test_a_worker_that_dies_at_each_rest_ends_the_run_in_one_line(
    office: Office, phase: str
) -> None:
    """Its replacements play every step to the end in between."""
    office.turn(0)
    with pytest.raises(RunError) as raised:
        for step in range(1, 9):
            office.deadly = {(1, phase)}
            office.turn(step)
    assert re.fullmatch(
        r"runtime: worker 1 died 3 times in a row while it rested or woke \(runtime.max_restarts "
        rf"is 2\); the last time: RayActorError: .+{re.escape(LOGS)}",
        str(raised.value),
    )
    assert step == 3 and office.workers.counts()["runtime/worker_deaths"] == 3
    assert [line.partition(" and is")[0] for line in office.said] == [
        "runtime: worker 1 was lost"
    ] * 2


@pytest.mark.parametrize("phase", ["rest", "wake"])
def test_rare_deaths_in_a_long_run_are_not_added_up(office: Office, phase: str) -> None:
    rows = []
    for step in range(24):
        # Each worker dies twice in a row, and then comes through a rest.
        office.deadly = set() if step % 4 in (0, 3) else {(1, phase), (0, phase)}
        office.turn(step)
        rows.append(office.row())
    assert max(map(max, rows)) == 2 == office.workers.max_restarts
    assert office.workers.counts()["runtime/worker_deaths"] == 24


def test_a_worker_that_dies_in_its_games_does_not_count_as_resting(office: Office) -> None:
    """Only deaths with the same specs count then, also if the worker has rested before."""
    for step in range(8):
        office.deadly = {(1, "play")}
        office.turn(step)
        assert office.row() == [0, 0]
    assert office.workers.counts()["runtime/worker_deaths"] == 8


def test_deaths_of_different_workers_are_counted_apart(office: Office) -> None:
    office.turn(0)
    for step in range(1, 6):
        office.deadly = {(step % 2, "rest")}
        office.turn(step)
    assert office.workers.counts()["runtime/worker_deaths"] == 5
