"""Tests of cluster health: a Ray that does not start, and waits that end when Ray dies."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from selfplay.config import compose
from selfplay.config.instantiate import build
from selfplay.errors import RunError
from selfplay.learner.objective import PolicyLoss
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime import cluster_health
from selfplay.runtime.cluster import RayCluster
from selfplay.runtime.cluster_health import PlacementCheck, RayHealthCheck, shortage
from selfplay.runtime.learner_worker_group import LearnerWorkerGroup
from selfplay.runtime.ray import RayRuntime
from tests.helpers.builders import save_tiny
from tests.helpers.command_process import LONGEST
from tests.helpers.fault_injection import settings, specs
from tests.helpers.ray_processes import kill

ray = pytest.importorskip("ray")

SIZES = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64, "positions": 256}


class Waiting(threading.Thread):
    """A wait in its own thread, and its error."""

    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._wait = wait
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._wait()
        except Exception as error:
            self.error = error


@pytest.fixture
def a_ray() -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize(
    ("name", "signal_"),
    [
        ("raylet", signal.SIGKILL),
        pytest.param("raylet", signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param("gcs_server", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("gcs_server", signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_every_wait_ends_when_ray_dies_or_is_stopped(
    name: str, signal_: int, a_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cluster_health.SILENCE, "gcs_server", 3.0)
    monkeypatch.setattr(cluster_health, "STOPPED", 10.0)
    model = save_tiny(tmp_path / "model", **SIZES)
    players = RolloutSetup(settings(model, tmp_path / "mark"))
    runtime = RayRuntime(workers=1, worker_cpus=0.5, timeout=600)
    players.load(runtime.engine(players))
    runtime.trainers(players, PolicyLoss())
    sleeps = tmp_path / "sleeps"
    sleeps.touch()
    asked = specs(1, trouble="hang", mark=str(sleeps))
    waits = [Waiting(lambda: runtime.rollout_fn(players)(asked))]
    while sleeps.exists():
        assert waits[0].is_alive(), waits[0].error
        time.sleep(0.1)

    other, crowded = (RayCluster(address=None, cpus=1, timeout=600) for _ in range(2))
    other.reserve([{"CPU": 0.5}])
    ranks = LearnerWorkerGroup(other, bundles=[0], gpu=False, timeout=600, max_restarts=3)
    learning = compose.load(["+experiment=tiny/smoke", f"policy.model={model}"])
    learners: Any = SimpleNamespace(config=learning, saved=None, learner_settings={})
    waits += [
        Waiting(lambda: ranks.trainers(learners, build(learning["objective"]))),
        Waiting(lambda: crowded.reserve([{"CPU": 2.0}])),
    ]
    time.sleep(0.5)
    assert [wait.error for wait in waits] == [None] * 3
    kill(name, os.getpid(), signal_)
    for wait in waits:
        wait.join(LONGEST)
        assert isinstance(wait.error, RunError)
        assert str(wait.error).startswith(f"runtime: Ray died under this run: its {name} at ")
        assert "selfplay train resume=RUN" in str(wait.error)
    crowded.connected_here = True  # so that its end also ends Ray
    closing = Waiting(lambda: [each.close() for each in (ranks, runtime, other, crowded)])
    closing.join(LONGEST)
    assert not closing.is_alive() and closing.error is None and not ray.is_initialized()
    players.close()


def node(cpus: float, *, gpus: float = 0.0, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"CPU": cpus, "GPU": gpus, "memory": 1e9}}


@pytest.mark.parametrize(
    ("bundles", "nodes", "line"),
    [
        ([{"CPU": 1.0}] * 3, [node(2), node(1)], None),
        (
            [{"CPU": 1.0}] * 3,
            [node(2), node(1, alive=False)],
            "3 cores are needed, the cluster has 2",
        ),
        (
            [{"CPU": 1.0, "GPU": 0.5}] * 3,
            [node(8, gpus=1), node(8)],
            "1.5 GPUs are needed, the cluster has 1",
        ),
        (
            [{"CPU": 4.0, "GPU": 1.0}],
            [node(2, gpus=1), node(8)],
            "no machine of the cluster has 4 CPU and 1 GPU for one actor",
        ),
        ([{"CPU": 0.01}], [], "0.01 cores are needed, the cluster has 0"),
        ([{"CPU": 1.0, "GPU": 0.2}] * 15, [node(16, gpus=3)], None),  # as floats, above 3
        (
            [{"CPU": 1.0, "GPU": 0.875}] * 8 + [{"CPU": 1.0, "GPU": 1.0}],
            [node(16, gpus=8)],
            "9 GPUs are needed, because an actor with a part of a GPU has it on one GPU, and the "
            "cluster has 8",
        ),
        ([{"CPU": 1.0, "GPU": 0.5}] * 8 + [{"CPU": 1.0, "GPU": 1.0}], [node(16, gpus=5)], None),
    ],
)
def test_missing_resources_of_a_cluster_are_named(
    bundles: list[dict[str, float]], nodes: list[dict[str, Any]], line: str | None
) -> None:
    assert shortage(bundles, nodes) == line


def test_a_run_waits_for_lost_nodes_while_they_may_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, state, nodes = 100.0, "CREATED", [node(1), node(1)]
    monkeypatch.setattr(cluster_health.time, "monotonic", lambda: now)
    places = PlacementCheck(
        [{"CPU": 1.0}] * 2, state=lambda: state, nodes=lambda: nodes, timeout=600
    )
    places.look()
    state, nodes = "RESCHEDULING", [node(1), node(1, alive=False)]
    now = 900.0  # the time of the loss is unknown, because nothing was checked
    places.look()
    now = 919.0
    places.look()
    now = 920.0
    with pytest.raises(RunError, match=r"no room .*: 2 cores are needed, the cluster has 1; "):
        places.look()
    nodes = [node(1), node(1)]
    places.look()
    now = 1500.0
    with pytest.raises(RunError, match=r"no room .*: others use it; "):
        places.look()
    state = "CREATED"
    places.look()


class Process:
    """A stand-in for a process of Ray; it accepts connections also while it is stopped."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.stopped = False


@pytest.fixture
def rays(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Process, Process, RayHealthCheck]]:
    """Yield a raylet, a head, and their health check."""
    raylet, head = Process(), Process()
    stopped = {each.port: each for each in (raylet, head)}
    monkeypatch.setattr(
        cluster_health, "_answers", lambda to: not stopped[to.getpeername()[1]].stopped
    )
    context = SimpleNamespace(get_node_id=lambda: "here", gcs_address=f"127.0.0.1:{head.port}")
    here = {"NodeID": "here", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": raylet.port}
    nodes = [{"NodeID": "there"}, here]
    fake = SimpleNamespace(get_runtime_context=lambda: context, nodes=lambda: nodes)
    yield raylet, head, RayHealthCheck(fake)
    raylet.listener.close()
    head.listener.close()


def test_a_head_that_is_away_for_a_moment_is_not_dead(
    rays: tuple[Process, Process, RayHealthCheck], monkeypatch: pytest.MonkeyPatch
) -> None:
    raylet, head, found = rays
    assert not found.due() and found.look()
    head.listener.close()
    away = cluster_health.time.monotonic() + 60  # time without a check
    for seconds in (0.0, 9.9):
        monkeypatch.setattr(cluster_health.time, "monotonic", lambda: away + seconds)  # noqa: B023
        assert not found.look() and found.dead is None
    monkeypatch.setattr(cluster_health.time, "monotonic", lambda: away + 10.1)
    with pytest.raises(RunError, match=r"its gcs_server at 127\.0\.0\.1:\d+ takes no connection; "):
        found.look()
    assert found.dead == "gcs_server"
    raylet.listener.close()
    with pytest.raises(RunError, match=f"its raylet at 127.0.0.1:{raylet.port} takes no conn"):
        found.look()


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_process_that_connects_and_does_not_answer_is_named(
    name: str, rays: tuple[Process, Process, RayHealthCheck], monkeypatch: pytest.MonkeyPatch
) -> None:
    raylet, head, found = rays
    silent = raylet if name == "raylet" else head
    silent.stopped = True
    now = cluster_health.time.monotonic()
    for seconds in (0.0, 59.9):
        monkeypatch.setattr(cluster_health.time, "monotonic", lambda: now + seconds)  # noqa: B023
        assert found.look() == (name == "raylet")  # no call of Ray waits for a silent head
    silent.stopped = False
    assert found.look()
    silent.stopped = True
    monkeypatch.setattr(cluster_health.time, "monotonic", lambda: now + 100)
    found.look()
    monkeypatch.setattr(cluster_health.time, "monotonic", lambda: now + 160)
    with pytest.raises(
        RunError, match=rf"its {name} at \S+:{silent.port} has answered nothing for"
    ):
        found.look()


def test_any_reply_or_close_counts_as_an_answer() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(0.05)
    assert not cluster_health._answers(ours)
    theirs.sendall(b"x")
    assert cluster_health._answers(ours)
    theirs.close()
    assert cluster_health._answers(ours)  # a closed connection shows a living process
    ours.close()


def test_a_head_that_is_away_is_waited_for_before_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = iter([False, False, True])
    cluster: Any = RayCluster.__new__(RayCluster)
    cluster._health = SimpleNamespace(due=lambda: False, look=lambda: next(looks))
    cluster._placement = SimpleNamespace(look=lambda: None)
    monkeypatch.setattr("selfplay.runtime.cluster.TICK", 0.0)
    cluster.check()
    cluster.check(now=True)
    assert next(looks, "none left") == "none left"


def test_a_ray_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine Ray raises a plain `Exception`."""

    def init(*_: Any, **__: Any) -> None:
        raise Exception("The current node timed out during startup.\nA second line")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(RunError, match=r"^runtime: Ray did not start .* startup\. The machine may"):
        RayCluster(address=None, cpus=1, timeout=1.0)

    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("a fault of Ray")

    monkeypatch.setattr(ray, "init", broken)
    with pytest.raises(KeyError, match="a fault of Ray"):
        RayCluster(address=None, cpus=1, timeout=1.0)
