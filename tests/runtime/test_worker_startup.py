"""Workers that cannot start, because files are missing or were removed in the meantime."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from selfplay.config.compose import load
from selfplay.errors import ConfigError, LearnersLost
from selfplay.models.population import Population
from selfplay.run.activity import Tally
from selfplay.runtime.engine_worker import LostWorker, WorkerConfig, check_model_files
from selfplay.runtime.rollout_worker import RolloutWorker
from selfplay.runtime.rollout_worker_group import RolloutWorkers, _Call
from tests.helpers.builders import save_tiny
from tests.helpers.command_process import SMOKE
from tests.helpers.fault_injection import settings

ray = pytest.importorskip("ray")


def test_a_worker_makes_no_warm_start_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path))
    config = load([SMOKE])
    with pytest.raises(ConfigError, match=rf"^the warm start is not in {tmp_path}.*SELFPLAY_CACHE"):
        check_model_files(Population.of(config))
    config["population"]["policy"]["model"] = "somewhere"
    check_model_files(Population.of(config))


def test_a_worker_without_the_model_names_file_and_machine(tmp_path: Path) -> None:
    config = settings(tmp_path / "absent", tmp_path / "mark")
    worker = RolloutWorker()
    brief = WorkerConfig(
        config=config, threads=1, saved=None, max_staleness=0, timeout=1, host="elsewhere"
    )
    worker.begin(brief)
    with pytest.raises(ConfigError, match=rf"^worker on \S+: .*no model in .*{tmp_path}/absent"):
        worker.run([], None, 0)
    worker.close()


def whole() -> _Call:
    """Return a call with one chunk without jobs."""
    tally = Tally("episodes", 1)
    return _Call(jobs=[], evaluation=None, first=lambda: None, tally=tally, chunks=[[]])


def test_a_checkpoint_that_goes_while_a_worker_begins_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is replaced by another one, which gets the newest checkpoint."""
    from ray.exceptions import RayTaskError

    saved = tmp_path / "checkpoints/000004"
    config = settings(save_tiny(tmp_path / "model"), tmp_path / "mark")
    brief = WorkerConfig(
        config=config, threads=1, saved=saved, max_staleness=0, timeout=1, host="elsewhere"
    )
    faults = []
    for _ in range(2):
        worker = RolloutWorker()
        worker.begin(brief)
        with pytest.raises(Exception, match="000004") as raised:
            worker.run([], None, 0)
        faults.append(raised.value)
        worker.close()
        saved.parent.mkdir(exist_ok=True)
    nothing_seen, gone = faults
    assert isinstance(nothing_seen, ConfigError) and isinstance(gone, LostWorker)

    def answer(result: object, timeout: float) -> None:
        raise RayTaskError("play", "", gone)

    cluster: Any = SimpleNamespace(ray=SimpleNamespace(get=answer, exceptions=ray.exceptions))
    workers = RolloutWorkers(cluster, count=1, chunks=1, timeout=1, max_restarts=1)
    monkeypatch.setattr(workers, "_ask", lambda member, method, *given, thread: method)
    (member,) = workers._members
    workers._submit(member, whole(), 0)
    said = workers._take(member, member.playing[0])
    assert said == f"checkpoint {saved} was removed while it was read"


def test_a_worker_may_load_longer_than_it_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("selfplay.runtime.rollout_worker_group.time", clock)
    answers: list[int] = []

    def wait(asked: list[object], **how: object) -> tuple[list[object], list[object]]:
        there = asked == ["steps"] and bool(answers)
        return (asked, []) if there else ([], asked)

    def get(reference: object, timeout: float) -> int:
        if reference == "steps":
            return answers.pop()
        raise ray.exceptions.GetTimeoutError("late")

    package = SimpleNamespace(wait=wait, get=get, exceptions=ray.exceptions)
    cluster: Any = SimpleNamespace(ray=package, check=lambda: None)
    workers = RolloutWorkers(
        cluster, count=1, chunks=1, timeout=10, max_restarts=1, load_timeout=100
    )
    monkeypatch.setattr(workers, "_ask", lambda member, method, *given, thread: method)
    (member,) = workers._members
    workers._submit(member, whole(), 0)

    def gone(at: float, *said: int) -> str | None:
        now[0] = at
        answers.extend(said)
        for _, assignment in workers._finished():
            return workers._take(member, assignment)
        return None

    assert gone(50) is gone(99, -1) is gone(198) is None, "it builds its engine"
    assert gone(200) == "not loaded after 100 s (runtime.load_timeout)"
    assert gone(210, 0) is gone(219) is None
    assert gone(221) == "no engine step for 10 s (runtime.timeout)"


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (OSError("Broken pipe"), LostWorker),
        (ray.exceptions.RaySystemError("no raylet"), LostWorker),
        (ray.exceptions.GetTimeoutError("late"), ray.exceptions.GetTimeoutError),
        (ray.exceptions.ObjectLostError("it", None, ""), LearnersLost),
    ],
)
def test_a_worker_whose_machine_goes_is_lost_and_not_its_run(
    error: Exception, reported: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(reference: object, timeout: float) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    worker = RolloutWorker()
    worker._timeout = 1
    with pytest.raises(reported):
        worker._get("weights")
