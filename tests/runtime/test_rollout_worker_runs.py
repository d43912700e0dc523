"""Tests of whole runs on Ray workers, with and without killed processes."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

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


def test_a_league_on_workers_equals_the_league_of_one_process(tmp_path: Path) -> None:
    for name, more in (("here", ()), ("there", ALONE)):
        words = Command("train", *GAME, *PAST, f"run.name={name}", *more, cwd=tmp_path).end()
        assert "WARNING" not in words and "ray" not in words.replace("array", "").lower()
    assert_alike(tmp_path / "runs/there", tmp_path / "runs/here")
    record = (tmp_path / "runs/there/episodes/000003.jsonl").read_text().splitlines()
    seatings = [json.loads(line)["episode"]["policy_map"] for line in record]
    assert any(name.startswith("base@") for each in seatings for name in each.values())


def test_a_run_survives_the_death_of_its_worker(tmp_path: Path) -> None:
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
def test_a_pair_of_worker_and_rank_learns_like_one_process(tmp_path: Path, victim: str) -> None:
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


def test_two_pairs_learn_what_one_process_learns_to_rounding(tmp_path: Path) -> None:
    """The batches of two workers and two ranks have other sizes, so that sums round differently.

    A sample depends on its seed and the log-probabilities, which differ by a few millionths, so
    all games of three steps must be equal, token by token. If a rank lost one sample, the weights
    would differ by 0.16 of the distance that they move in two steps.
    """
    place, alone = tmp_path / "runs/pairs", finished()
    pairs = ("runtime=ray", "runtime.workers=2", "runtime.colocated=true")
    Command("train", SMOKE, *pairs, "run.name=pairs", cwd=tmp_path).end()
    records = sorted(alone.glob("episodes/*.jsonl"))
    assert len(records) == 3
    for path in records:
        wanted, wanted_logprobs = _played(path)
        found, logprobs = _played(place / path.relative_to(alone))
        assert found == wanted
        assert len(logprobs) > 100 and logprobs == pytest.approx(wanted_logprobs, abs=2e-5)
    for line, expected in zip(metrics(place), metrics(alone), strict=True):
        assert _of_games(line) == pytest.approx(_of_games(expected), rel=1e-5, abs=1e-6)
    moved = float((_flat(alone, 3) - _flat(alone, 1)).norm())
    for number in (1, 2, 3):
        apart = float((_flat(place, number) - _flat(alone, number)).norm())
        assert apart < 1e-3 * moved  # rounding alone gives 7e-6


def _played(record: Path) -> tuple[list[Any], list[float]]:
    """Return a step's episodes without their log-probabilities, and these in order."""
    episodes = [json.loads(line) for line in record.read_text().splitlines()]
    turns = (turn for each in episodes for turn in each["episode"]["turns"])
    return episodes, [logprob for turn in turns for logprob in turn.pop("logprobs")]


def _of_games(line: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that do not depend on the number of processes."""
    left_out = ("runtime/", "engine/", "service/", "policy/base/computed_tokens")
    return {key: value for key, value in line.items() if not key.startswith(left_out)}


def _flat(run: Path, number: int) -> torch.Tensor:
    """Return all weights of a checkpoint in one row."""
    weights = load_file(run / f"checkpoints/{number:06d}/policies/base/model.safetensors")
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


def test_a_killed_driver_leaves_no_process_and_can_be_resumed(tmp_path: Path) -> None:
    place = tmp_path / "runs/hurt"
    command = Command("train", SMOKE, *ALONE, "run.name=hurt", cwd=tmp_path, hold=3)
    wait(step(place, 2))
    command.process.kill()
    command.process.communicate()
    wait(lambda: not command.started())
    Command("train", "resume=runs/hurt", cwd=tmp_path).end()
    assert_alike(place, finished())
