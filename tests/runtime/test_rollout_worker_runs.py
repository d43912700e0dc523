"""Whole runs on Ray workers, undisturbed and with processes killed in the middle."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.helpers.command_process import SMOKE, finished, metrics
from tests.helpers.league_settings import ANCHORS, GAME
from tests.helpers.ray_command import Command, assert_alike, none_left, step, wait

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
__all__ = ["none_left"]

ALONE = ("runtime=ray", "runtime.workers=1")
PAST = (
    *ANCHORS,
    "league.players.default.matchmaking.weights={current: 0, past: 0.9, anchors: 0.1}",
)


def test_a_league_on_workers_is_the_league_of_one_process(tmp_path: Path) -> None:
    for name, more in (("here", ()), ("there", ALONE)):
        words = Command("train", *GAME, *PAST, f"run.name={name}", *more, cwd=tmp_path).end()
        assert "WARNING" not in words and "ray" not in words.replace("array", "").lower()
    assert_alike(tmp_path / "runs/there", tmp_path / "runs/here")
    record = (tmp_path / "runs/there/episodes/000003.jsonl").read_text().splitlines()
    seatings = [json.loads(line)["episode"]["policy_map"] for line in record]
    assert any(name.startswith("base@") for each in seatings for name in each.values())


def test_a_run_outlives_its_worker(tmp_path: Path) -> None:
    place = tmp_path / "runs/hurt"
    command = Command("train", SMOKE, *ALONE, "run.name=hurt", cwd=tmp_path, hold=3)
    wait(step(place, 1))
    (worker,) = command.started("ray::RolloutWorker")
    os.kill(worker, signal.SIGKILL)
    command.go()
    command.end()
    assert_alike(place, finished(), counts=False)
    assert sum(line.get("runtime/worker_deaths", 0) for line in metrics(place)) == 1


@pytest.mark.parametrize("victim", ["", "ray::RolloutWorker", "ray::LearnerWorker"])
def test_a_pair_of_worker_and_rank_is_one_process(tmp_path: Path, victim: str) -> None:
    place = tmp_path / "runs/pair"
    given = (*ALONE, "runtime.colocated=true", "run.checkpoint_every=1")
    command = Command(
        "train", SMOKE, *given, "run.name=pair", cwd=tmp_path, hold=3 if victim else 0
    )
    if victim:
        wait(step(place, 1))
        os.kill(command.started(victim)[0], signal.SIGKILL)
        command.go()
    command.end()
    lines = metrics(place)
    losses = [line["policy/base/loss"] for line in lines[1:]]
    assert losses == [line["policy/base/loss"] for line in metrics(finished())[1:]]
    assert sum(line["runtime/worker_deaths"] for line in lines) == (victim == "ray::RolloutWorker")
    assert lines[-1]["runtime/learner_restarts"] == (victim == "ray::LearnerWorker")
    assert all(line["runtime/offload_seconds"] > 0 for line in lines[1:])


def test_a_killed_driver_leaves_nothing_behind_and_can_be_resumed(tmp_path: Path) -> None:
    place = tmp_path / "runs/hurt"
    command = Command("train", SMOKE, *ALONE, "run.name=hurt", cwd=tmp_path, hold=3)
    wait(step(place, 2))
    command.process.kill()
    command.process.communicate()
    wait(lambda: not command.started())
    Command("train", "resume=runs/hurt", cwd=tmp_path).end()
    assert_alike(place, finished())
