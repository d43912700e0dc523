"""Tests of a league sampled ahead that returns to a checkpoint during later games."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from selfplay.config import compose
from selfplay.errors import LearnersLost
from selfplay.experiment.experiment import Experiment
from selfplay.league.snapshots import Snapshots
from selfplay.learner.learner import Learner
from selfplay.rollout.episode_runner import EpisodeRunner, EpisodeSpec
from selfplay.rollout.rollout import Rollout
from selfplay.run.directory import Run
from selfplay.types import Completion
from tests.helpers.command_process import metrics, shared_cache
from tests.helpers.concurrent_runtime import CopyingEngine
from tests.helpers.league_settings import GAME
from tests.helpers.prefetched_batches import until
from tests.helpers.prefetched_runs import train

STEPS, LOST, AHEAD = 6, 4, 6
SLOW, HELD = 0.1, 3.0
"""Seconds of an engine step before the learner is lost, and of the longest wait after it."""


def settings() -> dict[str, Any]:
    changes = (
        *("league=pfsp", "league.players.default.add.updates=1", "league.drop.most=2"),
        *("objective.correction=truncated", f"run.steps={STEPS}", "run.checkpoint_every=2"),
    )
    composed = compose.load([*GAME, *changes])
    composed["runtime"] = {
        "_target_": "tests.helpers.concurrent_runtime.ConcurrentRuntime",
        "max_staleness": 2,
    }
    return composed


def test_games_of_discarded_steps_do_not_end_repeated_games(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check step 6, which may seat the snapshot of step 3 that the checkpoint of step 2 lacks."""
    monkeypatch.setenv("SELFPLAY_CACHE", str(shared_cache()))
    begun, lost, back = set[int | None](), threading.Event(), threading.Event()
    update, begin, step, load = (
        Learner.update,
        Rollout.begin_episode,
        CopyingEngine.step,
        Snapshots.load,
    )

    def struck(self: Learner, samples: Any, *, step: int) -> dict[str, float]:
        if step == LOST and not lost.is_set():
            until(lambda: AHEAD in begun)
            lost.set()
            threading.Timer(HELD, back.set).start()  # in case the return waits for the games
            raise LearnersLost("rank 1 died")
        return update(self, samples, step=step)

    def noted(self: Rollout, spec: EpisodeSpec) -> EpisodeRunner:
        begun.add(spec.step)
        return begin(self, spec)

    def held(self: CopyingEngine) -> list[Completion]:
        if lost.is_set():
            back.wait()
        elif AHEAD in begun:
            time.sleep(SLOW)
        return step(self)

    def loaded(self: Snapshots, *given: Any) -> None:
        load(self, *given)
        back.set()

    monkeypatch.setattr(Learner, "update", struck)
    monkeypatch.setattr(Rollout, "begin_episode", noted)
    monkeypatch.setattr(CopyingEngine, "step", held)
    monkeypatch.setattr(Snapshots, "load", loaded)
    composed = settings()
    run = Run.create(tmp_path / "run", composed)
    output = train(Experiment(composed).load(), run)
    assert output.count("rank 1 died; going on from checkpoint 000002") == 1
    assert [line["step"] for line in metrics(run.folder)] == list(range(STEPS + 1))
