"""Tests of workers that cannot start, because files are missing or are removed meanwhile."""

import re
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from selfplay.config.compose import load
from selfplay.errors import ConfigError, LearnersLost, RunError
from selfplay.models.population import Population
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.run.activity import Tally
from selfplay.runtime.engine_worker import LostWorker, WorkerConfig, check_model_files
from selfplay.runtime.rollout_worker import RolloutWorker
from selfplay.runtime.rollout_worker_group import RolloutWorkers, _Call
from selfplay.runtime.weight_sync import UpdateWeights, checksum, pack
from selfplay.types import Task
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
    worker_config = WorkerConfig(
        config=config, threads=1, saved=None, max_staleness=0, timeout=1, host="elsewhere"
    )
    worker.begin(worker_config)
    with pytest.raises(ConfigError, match=rf"^worker on \S+: .*no folder .*{tmp_path}/absent"):
        worker.run([], None, 0)
    worker.close()


def sent(folder: Path, *, version: int = 0) -> tuple[UpdateWeights, dict[str, torch.Tensor]]:
    """Return an update with random weights for a saved model, and these weights."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(1)
    weights = {name: torch.randn_like(each) / 50 for name, each in model.named_parameters()}
    checksums = {name: checksum(tensor) for name, tensor in weights.items()}
    packed = pack(weights, weights.keys())
    for array, _, _ in packed.values():
        array.setflags(write=False)  # like arrays from Ray's store
    update = UpdateWeights(policy="thinker", weights=packed, version=version, checksums=checksums)
    return update, weights


@pytest.mark.parametrize("version", [0, 3])
def test_a_worker_builds_its_model_from_sent_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    folder = save_tiny(tmp_path / "model")
    update, weights = sent(folder, version=version)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    worker = RolloutWorker()
    monkeypatch.setattr(worker, "_get", lambda reference: reference)
    config = settings(folder, tmp_path / "mark")
    worker_config = WorkerConfig(
        config=config,
        threads=1,
        saved=None,
        max_staleness=0,
        timeout=1,
        host="here",
        number=1,
        changes=[update],
        receives=True,
    )
    worker.begin(worker_config)
    spec = EpisodeSpec(task=Task(id="one", payload={"agents": ["thinker_0"]}), seed=0, member=0)
    result = worker.run([spec], None, 1)
    own = dict(worker._models["thinker"].named_parameters())
    assert all(torch.equal(own[name], tensor) for name, tensor in weights.items())
    assert {turn.version for turn in result.episodes[0].turns} == {version}
    later = {name: tensor + 1 for name, tensor in weights.items()}
    checksums = {name: checksum(tensor) for name, tensor in later.items()}
    packed = pack(later, later.keys())
    worker.send(2, UpdateWeights(policy="thinker", weights=packed, version=4, checksums=checksums))
    worker.run([spec], None, 2)
    assert all(torch.equal(own[name], tensor) for name, tensor in later.items())
    worker.close()


def test_a_worker_does_not_sample_without_all_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny(tmp_path / "model")
    update, _ = sent(folder)
    lost = sorted(update.weights)[0]
    rest = {name: packed for name, packed in update.weights.items() if name != lost}
    worker = RolloutWorker()
    monkeypatch.setattr(worker, "_get", lambda reference: reference)
    worker_config = WorkerConfig(
        config=settings(folder, tmp_path / "mark"),
        threads=1,
        saved=None,
        max_staleness=0,
        timeout=1,
        host=socket.gethostname(),
        number=1,
        changes=[replace(update, weights=rest)],
        receives=True,
    )
    worker.begin(worker_config)
    with pytest.raises(RunError, match=rf"^policy 'thinker': no weights of {re.escape(lost)} were"):
        worker.run([], None, 1)
    worker.close()


def whole() -> _Call:
    """Return a call with one chunk without specs."""
    tally = Tally("episodes", 1)
    return _Call(specs=[], evaluation=None, first=lambda: None, tally=tally, chunks=[[]])


def test_a_checkpoint_removed_during_a_start_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is replaced by another one, which gets the newest checkpoint."""
    from ray.exceptions import RayTaskError

    saved = tmp_path / "checkpoints/000004"
    config = settings(save_tiny(tmp_path / "model"), tmp_path / "mark")
    worker_config = WorkerConfig(
        config=config, threads=1, saved=saved, max_staleness=0, timeout=1, host="elsewhere"
    )
    faults = []
    for _ in range(2):
        worker = RolloutWorker()
        worker.begin(worker_config)
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
    reason = workers._take(member, member.playing[0])
    assert reason == f"checkpoint {saved} was removed while it was read"


def test_lost_weights_end_all_workers_that_wait_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise each of these workers would cause another restart of all ranks."""

    def answer(result: object, timeout: float) -> None:
        raise ray.exceptions.RayTaskError("play", "", LearnersLost("the newest weights are lost"))

    ended: list[object] = []
    package = SimpleNamespace(get=answer, exceptions=ray.exceptions)
    cluster: Any = SimpleNamespace(ray=package, kill=ended.append)
    workers = RolloutWorkers(cluster, count=3, chunks=1, timeout=1, max_restarts=1)
    monkeypatch.setattr(workers, "_ask", lambda member, method, *given, thread: method)
    first, second, third = workers._members
    first.actor, second.actor = "first", "second"
    workers._submit(first, whole(), 0)
    with pytest.raises(LearnersLost, match="newest weights"):
        workers._take(first, first.playing[0])
    assert ended == ["first", "second"]
    assert first.actor is second.actor is third.actor is None


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

    def gone(at: float, *answered: int) -> str | None:
        now[0] = at
        answers.extend(answered)
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
def test_a_lost_machine_ends_its_worker_but_not_the_run(
    error: Exception, reported: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(reference: object, timeout: float) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    worker = RolloutWorker()
    worker._timeout = 1
    with pytest.raises(reported):
        worker._get("weights")
