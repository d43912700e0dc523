"""Tests of whole runs on learner ranks, which are killed and resumed in another process."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.helpers.command_process import SMOKE, finished, metrics
from tests.helpers.ray_command import Command, assert_alike, learned, step, wait

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

RANKS = ("runtime=ray", "runtime.workers=1", "runtime.learners=1")


@pytest.mark.parametrize("background", [False, True], ids=["synchronous", "in threads"])
def test_a_run_survives_its_learner_and_repeats_no_update(background: bool, tmp_path: Path) -> None:
    place, kind = tmp_path / "runs/hurt", f"run.async_checkpoints={background}"
    command = Command("train", SMOKE, *RANKS, kind, "run.name=hurt", cwd=tmp_path, hold=3)
    wait(step(place, 1))
    (rank,) = command.started("ray::LearnerWorker")
    os.kill(rank, signal.SIGKILL)
    command.go()
    words = command.end()
    assert "learner rank 0 died" in words
    assert_alike(place, finished(), counts=False)
    for file in finished().glob("checkpoints/*/policies/*/*.safetensors"):
        assert (place / file.relative_to(finished())).read_bytes() == file.read_bytes()
    assert metrics(place)[-1]["runtime/learner_restarts"] == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [((), ("runtime=ray", "runtime.workers=1", "runtime.learners=2")), (RANKS, ("runtime=local",))],
    ids=["from one process to ranks", "from a rank to one process"],
)
def test_a_run_continues_on_another_runtime(
    before: tuple[str, ...], after: tuple[str, ...], tmp_path: Path
) -> None:
    place = tmp_path / "runs/moved"
    command = Command("train", SMOKE, *before, "run.name=moved", cwd=tmp_path, hold=3)
    wait(step(place, 2))
    wait(lambda: (place / "checkpoints/000001/manifest.json").exists())
    command.process.kill()
    command.process.communicate()
    wait(lambda: not command.started())
    Command("train", "resume=runs/moved", *after, cwd=tmp_path).end()
    if "runtime=local" in after:
        assert_alike(place, finished(), counts=False)
        return
    for line, wanted in zip(metrics(place), metrics(finished()), strict=True):
        assert learned(line) == pytest.approx(learned(wanted), rel=1e-3, abs=1e-5)
    manifest = json.loads((place / "checkpoints/000003/manifest.json").read_text())
    assert {"learners/base/__0_0.distcp", "learners/base/__1_0.distcp"} <= set(manifest)
