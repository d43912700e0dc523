"""Tests of runs with batches sampled ahead: records, checkpoints, losses and resumption."""

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from selfplay.config import compose
from selfplay.curriculum.fixed import FixedTasks
from selfplay.errors import LearnersLost
from selfplay.experiment.experiment import Experiment
from selfplay.learner import checkpoint
from selfplay.learner.checkpoint_writer import CheckpointWriter
from selfplay.learner.learner import Learner
from selfplay.rng import derive
from selfplay.run.directory import Run
from selfplay.run.record_reader import episodes_of
from selfplay.types import Group
from tests.helpers.command_process import metrics, shared_cache
from tests.helpers.prefetched_runs import IDLE, assert_metrics_alike, resumed, train, trained

STEPS, LAG, SEED = 6, 2, 0
RULE = {
    "metric": "curriculum/health",
    "direction": "decrease",
    "threshold": 0.5,
    "window": 2,
    "patience": 2,
}


class Frail(FixedTasks):
    """A curriculum that reports a collapse from step 4 on if games have the run's seed."""

    def observe(self, groups: Sequence[Group], step: int) -> None:
        """Compare the seed of the games with the run's."""
        first = derive(SEED, step, 0, 0, groups[0].episodes[0].task.id)
        self.sick = step >= 4 and groups[0].episodes[0].seed == first

    def metrics(self) -> dict[str, float]:
        """Return the health in addition to the laps."""
        return {**super().metrics(), "health": float(not self.sick)}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFPLAY_CACHE", str(shared_cache()))


def settings(*changes: str, lag: int = LAG) -> dict[str, Any]:
    tiny = ["warmstart.steps=2", "warmstart.batch=8", "warmstart.demonstrations.hands=50"]
    tiny += ["sampler.group_size=3", "run.threads=1", "objective.correction=truncated"]
    often = ["run.checkpoint_every=2", "run.episodes_every=1", "evaluations=none"]
    composed = compose.load(
        ["+experiment=tiny/kuhn", f"run.steps={STEPS}", *tiny, *often, *changes]
    )
    composed["runtime"] = {
        "_target_": "tests.helpers.concurrent_runtime.ConcurrentRuntime",
        "max_staleness": lag,
    }
    return composed


def states(run: Run) -> dict[str, Any]:
    found = sorted((run.folder / "checkpoints").iterdir())
    return {place.name: checkpoint.read_state(place)["curriculum"] for place in found}


def played(run: Run) -> list[Any]:
    """Return the completions and rewards of each episode, without versions."""
    return [
        (step, [(turn.completion_ids, turn.reward) for turn in line.episode.turns])
        for step in range(1, STEPS + 1)
        for line in episodes_of(run.folder, step)
    ]


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run with constant weights that was sampled ahead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFPLAY_CACHE", str(shared_cache()))
        return trained(tmp_path_factory.mktemp("idle") / "run", settings(*IDLE))


def test_a_run_that_learns_reports_the_staleness_of_its_samples(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", settings())
    lines = metrics(run.folder)
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    for line in lines[1:]:
        assert 0 <= line["policy/base/staleness_mean"] <= line["policy/base/staleness_max"] <= LAG
        assert line["policy/base/mismatch_kl"] >= 0 <= line["policy/base/corrected_share"]
    for step in range(1, STEPS + 1):
        oldest = min(
            turn.version for line in episodes_of(run.folder, step) for turn in line.episode.turns
        )
        assert lines[step]["policy/base/staleness_max"] == step - 1 - oldest


def test_with_constant_weights_the_run_equals_one_without_prefetch(
    idle: Run, tmp_path: Path
) -> None:
    plain = trained(tmp_path / "run", settings(*IDLE, lag=0))
    assert_metrics_alike(idle, plain)
    assert states(idle) == states(plain)
    assert played(idle) == played(plain)
    assert not any("seconds/sampling" in line for line in metrics(plain.folder))


@pytest.mark.parametrize(("at", "death"), [(3, KeyboardInterrupt()), (6, ZeroDivisionError())])
def test_an_interrupted_run_continues_identically(
    at: int, death: BaseException, idle: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = settings(*IDLE)
    run, update = Run.create(tmp_path / "run", composed), Learner.update

    def struck(self: Learner, samples: Any, *, step: int) -> dict[str, float]:
        if step == at:
            raise death
        return update(self, samples, step=step)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", struck)
        with pytest.raises(type(death)):
            train(Experiment(composed).load(), run)
    resumed(run, composed)
    assert_metrics_alike(run, idle)
    assert states(run) == states(idle)
    assert played(run) == played(idle)


def die_at(monkeypatch: pytest.MonkeyPatch, *steps: int) -> threading.Event:
    """Let the update of each given step lose its learners once; return an event for the first."""
    update, deaths, lost = Learner.update, [*steps], threading.Event()

    def struck(self: Learner, samples: Any, *, step: int) -> dict[str, float]:
        if step in deaths:
            deaths.remove(step)
            lost.set()
            raise LearnersLost("rank 1 died")
        return update(self, samples, step=step)

    monkeypatch.setattr(Learner, "update", struck)
    return lost


def test_lost_learners_are_restarted_from_the_newest_checkpoint(
    idle: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = settings(*IDLE)
    run = Run.create(tmp_path / "run", composed)
    die_at(monkeypatch, 5, 4)
    output = train(Experiment(composed).load(), run)
    assert "step 4: rank 1 died; going on from checkpoint 000002" in output
    assert "step 5: rank 1 died; going on from checkpoint 000004" in output
    assert_metrics_alike(run, idle)
    assert played(run) == played(idle)


def test_learners_lost_in_the_first_step_find_a_checkpoint(
    idle: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that step 1 waits for checkpoint 0, which would be lost if the ranks died before."""
    composed = settings(*IDLE, "run.async_checkpoints=true")
    run, write = Run.create(tmp_path / "run", composed), CheckpointWriter._write
    lost = die_at(monkeypatch, 1)

    def slow(self: CheckpointWriter, content: Any, partial: Path, *given: Any) -> None:
        if partial.name == ".000000.partial" and lost.wait(2):
            shutil.rmtree(partial)
            raise LearnersLost("rank 1 died (end_save)")
        write(self, content, partial, *given)

    monkeypatch.setattr(CheckpointWriter, "_write", slow)
    output = train(Experiment(composed).load(), run)
    assert "step 1: rank 1 died; going on from checkpoint 000000" in output
    assert_metrics_alike(run, idle)
    assert played(run) == played(idle)


def test_ranks_lost_while_writing_the_last_checkpoint_cost_no_step(
    idle: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = settings(*IDLE, "run.async_checkpoints=true")
    run, write, deaths = Run.create(tmp_path / "run", composed), CheckpointWriter._write, [STEPS]

    def struck(self: CheckpointWriter, content: Any, partial: Path, *given: Any) -> None:
        if deaths and partial.name == f".{STEPS:06d}.partial":
            shutil.rmtree(partial)
            raise LearnersLost(f"rank 1 died at step {deaths.pop()}")
        write(self, content, partial, *given)

    monkeypatch.setattr(CheckpointWriter, "_write", struck)
    output = train(Experiment(composed).load(), run)
    assert f"step {STEPS}: rank 1 died at step {STEPS}; going on from checkpoint 000004" in output
    assert not deaths and states(run).keys() == states(idle).keys()
    assert_metrics_alike(run, idle)


def test_the_first_cause_of_a_loss_is_reported_during_writing_too(
    idle: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = settings(*IDLE, "run.async_checkpoints=true")
    run, write = Run.create(tmp_path / "run", composed), CheckpointWriter._write
    lost, unwritten = die_at(monkeypatch, 5), [".000004.partial"]

    def unfinished(self: CheckpointWriter, content: Any, partial: Path, *given: Any) -> None:
        if partial.name in unwritten:
            unwritten.remove(partial.name)
            assert lost.wait(60)
            shutil.rmtree(partial)
            raise LearnersLost("rank 1 died (end_save)")
        write(self, content, partial, *given)

    monkeypatch.setattr(CheckpointWriter, "_write", unfinished)
    output = train(Experiment(composed).load(), run)
    assert "step 5: rank 1 died; going on from checkpoint 000002" in output
    assert "end_save" not in output
    assert_metrics_alike(run, idle)


def test_a_run_that_rolls_back_samples_again_with_other_seeds(tmp_path: Path) -> None:
    changes = ["collapse=roll_back", "run.checkpoint_every=1", "run.keep_checkpoints=1"]
    composed = settings(*changes, "evaluations=none")
    composed["curriculum"]["_target_"] = f"{__name__}.Frail"
    composed["collapse"]["rules"] = {"health": RULE}
    run = trained(tmp_path / "run", composed)
    lines = metrics(run.folder)
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    assert [line["step"] for line in metrics(run.folder / "rolled_back/1")] == [4, 5, 6]
    assert [line["curriculum/health"] for line in lines[4:]] == [1] * 3
    assert [line["curriculum/laps"] for line in lines[1:]] == [
        step * lines[1]["curriculum/laps"] for step in range(1, STEPS + 1)
    ]
