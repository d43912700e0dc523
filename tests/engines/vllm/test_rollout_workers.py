"""Tests of runs whose workers sample with vLLM: equal samples, and the end of all processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.command_process import SMOKE, metrics
from tests.helpers.ray_command import Command, assert_alike, step, wait

pytestmark = pytest.mark.vllm

VLLM = ("train", SMOKE, "engine=vllm")
ALONE = ("runtime=ray", "runtime.workers=1")


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    yield
    while Command.running:
        Command.running.pop().kill()


def proved(place: Path) -> list[float]:
    """Return the differences that the weight checks of the workers found, by step."""
    return [
        line[name] for line in metrics(place) if (name := "engine/base/proof_difference") in line
    ]


def test_a_run_on_a_worker_is_the_run_of_one_process(tmp_path: Path) -> None:
    Command(*VLLM, "run.name=here", cwd=tmp_path).end()
    Command(*VLLM, *ALONE, "run.name=there", cwd=tmp_path).end()
    assert_alike(tmp_path / "runs/there", tmp_path / "runs/here")
    found = proved(tmp_path / "runs/there")
    assert found and 0 < max(found) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("runtime", [(), ALONE])
def test_a_run_samples_with_two_shards(runtime: tuple[str, ...], tmp_path: Path) -> None:
    shards = ("engine.tensor_parallel=2", "run.name=split")
    Command(*VLLM, *runtime, *shards, cwd=tmp_path).end()
    assert metrics(tmp_path / "runs/split")[-1]["step"] == 3
    found = proved(tmp_path / "runs/split")
    assert found and 0 < max(found) < 1e-5


@pytest.mark.slow
def test_a_killed_worker_leaves_no_processes_and_is_replaced(tmp_path: Path) -> None:
    """The worker dies while it samples ahead; its replacement gets the new weights."""
    import psutil

    place = tmp_path / "runs/hurt"
    ahead = ("runtime.max_staleness=1", "objective.correction=truncated", "run.name=hurt")
    # The killed worker may have sampled up to step 4; another process samples the later steps.
    command = Command(*VLLM, *ALONE, *ahead, "run.steps=6", cwd=tmp_path, hold=3)
    wait(step(place, 1))
    (worker,) = command.started("ray::RolloutWorker")
    below = psutil.Process(worker).children(recursive=True)
    psutil.Process(worker).kill()
    command.go()
    _, alive = psutil.wait_procs(below, timeout=60)
    assert not alive
    command.end()
    lines = metrics(place)
    assert lines[-1]["step"] == 6
    assert sum(line.get("runtime/worker_deaths", 0) for line in lines) == 1
    found = proved(place)
    assert found and 0 < max(found) < 1e-5
