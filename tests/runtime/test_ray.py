"""Tests of the parts of the Ray runtime that need no cluster, and of a run on one worker."""

import math
import socket
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfplay.config.compose import load
from selfplay.engines import Engine
from selfplay.errors import ConfigError, EngineFailed, RunError, StalledError
from selfplay.experiment.experiment import check
from selfplay.models.lora import adapted, frozen_copy
from selfplay.models.policy_settings import Lora
from selfplay.models.renderer import ByteRenderer
from selfplay.runtime.cluster import reachable
from selfplay.runtime.ray import RayRuntime
from selfplay.runtime.remote_engine import RemoteEngine
from selfplay.runtime.rollout_worker_group import cut
from selfplay.runtime.updatable_engine import EngineDied, UpdatableEngine, UpdateQueue
from selfplay.runtime.weight_sync import (
    AddPolicy,
    Change,
    LoadState,
    OffloadPolicy,
    RemovePolicy,
    SyncState,
    UpdateWeights,
    pack,
    unpack,
)
from selfplay.types import Completion, Request
from tests.helpers.builders import llama
from tests.helpers.command_process import SMOKE, finished, metrics, run, summary
from tests.helpers.fault_injection import specs

pytest.importorskip("ray")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 50])
def test_jobs_are_cut_between_groups_into_pieces_of_about_one_length(count: int) -> None:
    asked = specs(12, size=4)
    pieces = list(cut(asked, count))
    assert list(chain.from_iterable(pieces)) == asked
    assert len(pieces) == min(count, 12)
    assert all(len({spec.seed for spec in piece}) * 4 == len(piece) for piece in pieces)
    sizes = [len(piece) for piece in pieces]
    assert max(sizes) - min(sizes) <= 4
    assert list(cut([], count)) == []


def test_groups_of_unequal_sizes_leave_no_piece_empty() -> None:
    asked = [*specs(1, size=9), *specs(4, size=1)[1:]]
    pieces = list(cut(asked, 3))
    assert list(chain.from_iterable(pieces)) == asked
    assert all(pieces) and len(pieces) <= 3


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_weights_travel_bit_for_bit(kind: torch.dtype) -> None:
    given = {"a": torch.arange(12).reshape(3, 4).to(kind).T, "b": torch.tensor(3).to(kind)}
    found = unpack(pack(given, ["a", "b"]))
    assert all(torch.equal(found[name], given[name]) for name in given)
    assert all(found[name].dtype is kind for name in given)
    with pytest.raises(RuntimeError, match="1 learned tensors are not published, such as c"):
        pack(given, ["a", "c"])


class Driver:
    """A driver's engine, and the updates that it sends."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.engine = RemoteEngine(send=self.changes.append, put=lambda packed: packed)


def test_only_trained_weights_are_sent() -> None:
    base = llama()
    whole, frozen = llama(1), llama(2).requires_grad_(False)
    adapter = adapted(base, Lora(rank=2, alpha=4), seed=0, where="policy")
    driver = Driver()
    for name, model in (("whole", whole), ("frozen", frozen), ("adapter", adapter)):
        driver.engine.serve(name, model, [2])
    assert driver.changes == []
    for name, model in (("whole", whole), ("frozen", frozen), ("adapter", adapter)):
        driver.engine.publish(name, model.state_dict(), 3)
    sent = [set(c.weights or ()) for c in driver.changes if isinstance(c, UpdateWeights)]
    assert sent[0] == {name for name, _ in whole.named_parameters()}
    assert sent[1] == set()
    assert sent[2] and all("lora_" in name for name in sent[2])
    driver.changes.clear()
    driver.engine.serve("adapter@3", frozen_copy(adapter), [2])
    driver.engine.publish("adapter@3", {}, 3)
    serve, first, second = driver.changes
    assert serve == AddPolicy(policy="adapter@3", player="adapter")
    assert isinstance(first, UpdateWeights) and set(first.weights) == sent[2]
    assert second == UpdateWeights(policy="adapter@3", weights=None, version=3)
    driver.engine.withdraw("adapter@3")
    assert driver.changes[-1] == RemovePolicy(policy="adapter@3")
    with pytest.raises(RuntimeError, match="served by workers"):
        driver.engine.add(Request(id=0, policy="whole", prompt_ids=(1,), seed=0, max_tokens=1))


def test_a_new_worker_gets_the_net_effect_of_all_changes() -> None:
    present = SyncState()
    old, new = pack(llama().state_dict(), ["lm_head.weight"]), pack({}, [])
    changes: list[Change] = [
        LoadState(service="buffer", state=b"one"),
        UpdateWeights(policy="base", weights=old, version=1),
        AddPolicy(policy="base@1", player="base"),
        UpdateWeights(policy="base@1", weights=old, version=0),
        UpdateWeights(policy="base@1", weights=None, version=1),
        AddPolicy(policy="base@2", player="base"),
        UpdateWeights(policy="base@2", weights=old, version=2),
        OffloadPolicy(policy="base@1"),
        RemovePolicy(policy="base@2"),
        LoadState(service="buffer", state=b"two"),
        UpdateWeights(policy="base", weights=new, version=2),
    ]
    for change in changes:
        present.add(change)
    assert present.number == 11
    assert present.changes() == [
        LoadState(service="buffer", state=b"two"),
        AddPolicy(policy="base@1", player="base"),
        UpdateWeights(policy="base", weights=new, version=2),
        UpdateWeights(policy="base@1", weights=old, version=1),
    ]


class Recording(Engine):
    """An engine that records its steps and fails at other calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def add(self, request: Request) -> None:
        raise NotImplementedError

    def step(self) -> list[Completion]:
        self.asked.append("step")
        return []

    def publish(self, policy: str, weights: object, version: int) -> None:
        raise ValueError("no room\non the device")

    def withdraw(self, policy: str) -> None:
        raise EngineFailed("out of memory")

    def release(self, policy: str) -> None:
        raise RunError("it did not arrive")


def test_changes_are_applied_between_steps_except_those_that_must_wait() -> None:
    inbox, applied = UpdateQueue(), list[Change]()
    inner = Recording()
    inner.in_flight_updates = True
    engine = UpdatableEngine(inner, inbox, applied.append)
    first = UpdateWeights(policy="base", weights=None, version=1)
    leaves, back = RemovePolicy(policy="base@1"), AddPolicy(policy="base@1", player="base")
    added = AddPolicy(policy="base@2", player="base")
    weights = UpdateWeights(policy="base@2", weights=None, version=2)
    last = LoadState(service="buffer", state=b"")
    inbox.begin(6, [first, leaves, back, added, weights, last])
    inbox.wait(6, timeout=0.1)
    engine.step()
    assert applied == [first, last] and engine.steps == 1
    engine.catch_up()
    assert applied == [first, last, leaves, back, added, weights]
    whole = UpdatableEngine(Recording(), inbox, applied.append)
    inbox.put(7, first)
    whole.step()
    assert len(applied) == 6
    with pytest.raises(EngineDied, match=r"^ValueError: no room on the device$"):
        engine.publish("base", {}, 1)
    with pytest.raises(EngineDied, match=r"^out of memory$"):
        engine.withdraw("base")
    with pytest.raises(RunError, match=r"^it did not arrive$"):  # a new engine would not help
        engine.release("base")
    with pytest.raises(StalledError, match=r"waited 0\.01 s"):
        inbox.wait(8, timeout=0.01)


def test_a_worker_without_jobs_keeps_only_the_newest_weights() -> None:
    inbox = UpdateQueue()
    other = UpdateWeights(policy="other", weights={"a": 0}, version=1)
    added = AddPolicy(policy="base@1", player="base")
    inbox.put(1, other)
    inbox.put(2, added)
    for version in range(1, 4):
        inbox.put(2 * version + 1, UpdateWeights(policy="base", weights={}, version=version))
        inbox.put(2 * version + 2, LoadState(service="buffer", state=bytes(version)))
    named = UpdateWeights(policy="base", weights=None, version=4)
    inbox.put(9, named)
    inbox.wait(9, timeout=0.1)
    assert inbox.take() == [
        other,
        added,
        UpdateWeights(policy="base", weights={}, version=3),
        LoadState(service="buffer", state=bytes(3)),
        named,
    ]


def test_a_worker_without_jobs_drops_updates_of_removed_policies() -> None:
    inbox = UpdateQueue()
    served = AddPolicy(policy="base@1", player="base")
    inbox.begin(1, [served])
    assert inbox.take() == [served]
    never = AddPolicy(policy="base@2", player="base")
    stays = AddPolicy(policy="base@3", player="base")
    weights = [UpdateWeights(policy=p.policy, weights={"a": 0}, version=1) for p in (never, stays)]
    rests = [OffloadPolicy(policy=f"base@{number}") for number in (1, 2, 3)]
    changes: list[Change] = [never, stays, *weights, *rests, *rests]
    leaves = [RemovePolicy(policy="base@1"), RemovePolicy(policy="base@2")]
    for number, change in enumerate([*changes, *leaves], 2):
        inbox.put(number, change)
    inbox.wait(1 + len(changes) + len(leaves), timeout=0.1)
    assert inbox.take() == [stays, weights[1], rests[2], leaves[0]]
    inbox.put(20, RemovePolicy(policy="base@3"))
    inbox.put(21, stays)
    inbox.put(22, RemovePolicy(policy="base@3"))
    assert inbox.take() == [RemovePolicy(policy="base@3")]


def test_the_wrapper_passes_on_attributes_of_its_engine() -> None:
    class Endpoint(Engine):
        renderer = ByteRenderer()
        awaiting = True

    inner = Endpoint()
    engine = UpdatableEngine(inner, UpdateQueue(), list[Change]().append)
    assert engine.awaiting and engine.renderer is inner.renderer


def test_an_engine_that_rests_twice_comes_back_to_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that gets no specs between two updates is asked to rest twice."""
    place, done = ["cuda"], list[str]()

    def offload(modules: object) -> Callable[[], None]:
        came_from = place[0]
        place[0] = "cpu"
        done.append("offload")
        return lambda: place.__setitem__(0, came_from)

    monkeypatch.setattr("selfplay.runtime.updatable_engine.offload", offload)
    engine = UpdatableEngine(Recording(), UpdateQueue(), list[Change]().append)
    engine.wake()
    for _ in range(2):
        engine.rest()
    assert place == ["cpu"] and done == ["offload"]
    engine.wake()
    assert place == ["cuda"]
    engine.rest()
    assert place == ["cpu"] and done == ["offload"] * 2


def test_updates_during_a_start_are_applied_after_the_initial_ones() -> None:
    inbox = UpdateQueue()
    old = UpdateWeights(policy="base", weights=None, version=5)
    new = UpdateWeights(policy="base", weights=None, version=6)
    inbox.put(6, new)
    inbox.begin(5, [old])
    inbox.wait(6, timeout=0.1)
    assert inbox.take() == [old, new]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"workers": 0}, "workers must be at least 1, not 0"),
        ({"chunks": 0}, "chunks must be at least 1, not 0"),
        ({"max_staleness": -1}, "max_staleness must be at least 0, not -1"),
        ({"worker_gpus": -0.5}, "worker_gpus must be at least 0, not -0.5"),
        ({"replicas": 0}, "replicas must be auto or at least 1, not 0"),
        ({"replicas": "all"}, "replicas must be auto or a number of copies, not 'all'"),
        ({"learners": 8, "replicas": 3}, r"replicas must divide the 8 rank\(s\), and 3 does not"),
        (
            {"colocated": True, "replicas": 4},
            r"replicas must divide the 2 rank\(s\), and 4 does not",
        ),
        ({"load_timeout": 0}, "load_timeout must be a positive number of seconds, not 0"),
        ({"timeout": 0}, "timeout must be a positive number of seconds, not 0"),
        ({"timeout": math.nan}, "timeout must be a positive number of seconds, not nan"),
        ({"timeout": math.inf}, "timeout must be a positive number of seconds, not inf"),
        ({"worker_cpus": math.nan}, "worker_cpus must be at least 0, not nan"),
        ({"worker_cpus": math.inf}, "worker_cpus must be finite, not inf"),
        ({"learners": 2, "learner_gpus": math.inf}, "learner_gpus must be finite, not inf"),
        (
            {"learners": 0, "learner_gpus": 1},
            "learner_gpus needs learner ranks, .* at least 1",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=f"^{line}$"):
        RayRuntime(**settings)


class SmallCluster:
    """A cluster with two GPUs."""

    def __init__(self, **settings: object) -> None:
        self.closed = False

    def gpus(self) -> float:
        return 2.0

    def close(self) -> None:
        self.closed = True


def test_a_cluster_with_too_few_gpus_is_left_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfplay.runtime.ray.RayCluster", SmallCluster)
    runtime = RayRuntime(workers=2, learners=2, address="head:6379")
    players: Any = SimpleNamespace(config=load([SMOKE]))
    with pytest.raises(ConfigError, match=r"^runtime: 2 learner rank\(s\) take all 2 GPUs"):
        runtime.engine(players)
    runtime.close()
    cluster: Any = runtime.cluster
    assert cluster.closed


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Yield a port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        check(load([SMOKE, "runtime=ray", *overrides]))
    line = str(raised.value)
    assert "\n" not in line
    return line


def test_a_missing_cluster_is_reported_before_anything_is_loaded(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = refused(f"runtime.address='127.0.0.1:{closed_port}'")
    assert line.startswith(f"runtime.address: no Ray cluster at 127.0.0.1:{closed_port} (")
    assert "ray start --head" in line
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    with pytest.raises(ConfigError, match=f"no Ray cluster at 127.0.0.1:{closed_port}"):
        reachable("auto")
    assert "is for Ray's client" in refused("runtime.address='ray://head:10001'")
    with pytest.raises(ConfigError, match="neither auto nor host:port"):
        reachable("head:port")
    assert "runtime: workers must be at least 1, not 0" in refused("runtime.workers=0")
    assert "did you mean 'workers'" in refused("+runtime.worker=2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_reported_before_anything_is_loaded() -> None:
    line = refused("runtime.worker_gpus=1")
    assert line.startswith("runtime: 2 GPUs are needed, this machine has 0 ")


def test_a_missing_ray_package_is_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("selfplay.errors.find_spec", lambda name: None)
    assert refused() == "runtime: needs the package 'ray'; pip install 'selfplay[ray]'"


def same_but_for_the_runtime(place: Path, other: Path) -> None:
    for line, expected in zip(metrics(place), metrics(other), strict=True):
        assert {k: v for k, v in line.items() if not k.startswith("runtime/")} == expected
    assert summary(place) == summary(other)
    names = [path.relative_to(other) for path in other.glob("episodes/*")]
    names += [path.relative_to(other) for path in other.glob("checkpoints/000003/policies/*/*")]
    assert len(names) > 3
    for name in names:
        assert (place / name).read_bytes() == (other / name).read_bytes(), name


def test_one_worker_gives_the_samples_of_one_process_bit_for_bit(tmp_path: Path) -> None:
    more = ("runtime=ray", "runtime.workers=1", "run.name=spread")
    outcome = run("train", SMOKE, *more, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    same_but_for_the_runtime(tmp_path / "runs/spread", finished())
    assert metrics(tmp_path / "runs/spread")[1]["runtime/worker_deaths"] == 0
