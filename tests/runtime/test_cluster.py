"""Tests of runs on an existing cluster of several nodes, one of which dies."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.command_process import LONGEST, SMOKE, finished, metrics
from tests.helpers.ray_command import Command, assert_alike, learned, none_left, step, wait
from tests.helpers.ray_processes import kill, started

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

__all__ = ["none_left"]

JOINED = ("runtime=ray", "runtime.address=auto")


class Machine:
    """A node of a cluster: `ray start` starts it on this machine, with its own raylet."""

    def __init__(self, *arguments: str) -> None:
        ports = ("--min-worker-port=0", "--max-worker-port=0")  # any free port
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *ports, *arguments],
            env={**os.environ, "RAY_AUTH_MODE": "token"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        output = []
        for line in self.process.stdout:
            output.append(line)
            if "Ray runtime started" in line:
                return
        raise AssertionError("".join(output))

    def die(self) -> None:
        """Kill all processes of the node at once."""
        kill("raylet", self.process.pid)

    def end(self) -> None:
        for number, _ in started(self.process.pid):
            os.kill(number, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()


class Cluster:
    """A head node and the nodes that join it."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.machines: list[Machine] = []
        self._start("--head", f"--port={self.port}", "--include-dashboard=false")

    def join(self) -> Machine:
        return self._start(f"--address=127.0.0.1:{self.port}")

    def _start(self, *arguments: str) -> Machine:
        self.machines.append(Machine(*arguments, "--num-cpus=1"))
        return self.machines[-1]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    # Ray gets its own folder, with a short name because sockets are in it, and a token.
    folder = tempfile.mkdtemp(prefix="ray-")
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef0123456789abcdef")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    made = Cluster()
    yield made
    for machine in reversed(made.machines):
        machine.end()
    shutil.rmtree(folder, ignore_errors=True)


def cores_in_use(cluster: Cluster) -> float:
    """Return the number of cores of the cluster that are in use."""
    script = (
        "import ray; ray.init('auto', logging_level='error', log_to_driver=False); "
        "print(ray.cluster_resources()['CPU'] - ray.available_resources().get('CPU', 0.0))"
    )
    return float(subprocess.check_output([sys.executable, "-c", script], text=True))


def refused(folder: Path, *more: str) -> str:
    """Return the one line of a run that is refused before it starts."""
    process = Command("train", SMOKE, *JOINED, *more, cwd=folder).process
    _, output = process.communicate(timeout=LONGEST)
    assert process.returncode == 2 and output.count("\n") == 1
    return output


def test_a_cluster_is_joined_used_and_left_as_it_was(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("first", "second"):
        more = ("runtime.workers=1", f"run.name={name}")
        Command("train", SMOKE, *JOINED, *more, cwd=tmp_path).end()
        assert_alike(tmp_path / "runs" / name, finished())
        wait(lambda: cores_in_use(cluster) == 0)
    line = refused(tmp_path, "runtime.workers=1", "runtime.worker_gpus=1")
    assert line.startswith("selfplay: runtime: 1 GPUs are needed, the cluster has 0; lower ")
    line = refused(tmp_path, "runtime.workers=1", "runtime.worker_cpus=2")
    assert line.startswith("selfplay: runtime: 2 cores are needed, the cluster has 1; lower ")


def test_ranks_on_two_nodes_have_one_copy_each_and_a_local_resume_works(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.join()
    # A node has one core, so it has room for one rank.
    cores = ("runtime.worker_cpus=0.1", "runtime.learner_cpus=0.9")
    ranks = (*JOINED, "runtime.workers=1", "runtime.learners=2", *cores)
    place = tmp_path / "runs/two"
    command = Command("train", SMOKE, *ranks, "run.name=two", cwd=tmp_path, hold=3)
    wait(step(place, 2))
    wait(lambda: (place / "checkpoints/000001/manifest.json").exists())
    command.process.kill()
    output = "".join(command.process.communicate())
    assert "runtime: 2 copies of the learners' state, each on one rank" in output
    Command("train", "resume=runs/two", "runtime=local", cwd=tmp_path).end()
    for line, wanted in zip(metrics(place), metrics(finished()), strict=True):
        assert learned(line) == pytest.approx(learned(wanted), rel=1e-3, abs=1e-5)


def test_a_run_survives_a_lost_machine_if_another_one_joins(
    cluster: Cluster, tmp_path: Path
) -> None:
    second = cluster.join()
    place = tmp_path / "runs/hurt"
    longer = (SMOKE, *JOINED, "run.steps=6")
    command = Command("train", *longer, "run.name=hurt", cwd=tmp_path, hold=4)
    wait(step(place, 1))
    second.die()
    third = cluster.join()
    command.go()
    output = command.end()
    # Each of the two nodes, which share a host and an address here, has one core for one worker.
    placed = re.findall(r"runtime: node (.+): 1 worker\(s\)$", output, re.MULTILINE)
    assert len(set(placed)) == 2 and sum(name.endswith("(this one)") for name in placed) == 1, (
        output
    )
    lines = metrics(place)
    assert [line["step"] for line in lines] == list(range(7))
    # The first replacement may die with the machine too, before Ray knows that the machine is dead.
    assert sum(line.get("runtime/worker_deaths", 0) for line in lines) in (1, 2)
    for path in place.glob("episodes/*.jsonl"):
        found = [json.loads(line) for line in path.read_text().splitlines()]
        names = [(each["group"], each["member"]) for each in found]
        assert len(set(names)) == len(names) > 0
    command = Command("train", *longer, "run.name=lost", cwd=tmp_path, hold=4)
    wait(step(tmp_path / "runs/lost", 1))
    third.die()
    command.go()
    _, output = command.process.communicate(timeout=LONGEST)
    assert command.process.returncode == 2
    assert "no room for the actors of this run: 2 cores are needed, the cluster has 1; " in output
    Command("train", "resume=runs/lost", "runtime=local", cwd=tmp_path).end()
    assert [line["step"] for line in metrics(tmp_path / "runs/lost")] == list(range(7))
