"""Tests of runs with a league sampled ahead: in threads, resumed, and from the command line."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from selfplay.config import compose
from selfplay.experiment.experiment import Experiment
from selfplay.learner import checkpoint
from selfplay.learner.learner import Learner
from selfplay.run.directory import Run
from selfplay.run.record_reader import episodes_of
from tests.helpers.command_process import InjectedFault, metrics, run, shared_cache
from tests.helpers.league_settings import GAME
from tests.helpers.prefetched_runs import IDLE, assert_metrics_alike, resumed, train, trained

STEPS = 5
LEAGUE = (
    *("league=pfsp", "league.players.default.add.updates=1", "league.drop.most=2"),
    "objective.correction=truncated",
)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFPLAY_CACHE", str(shared_cache()))


def settings(*changes: str, lag: int) -> dict[str, Any]:
    often = (f"run.steps={STEPS}", "run.episodes_every=1", "run.keep_checkpoints=10")
    composed = compose.load([*GAME, *LEAGUE, *often, *changes])
    composed["runtime"] = {
        "_target_": "tests.helpers.concurrent_runtime.ConcurrentRuntime",
        "max_staleness": lag,
    }
    return composed


def seatings(made: Run) -> dict[int, list[Any]]:
    """Return the policies of the agents and the completions of each episode, by step."""
    return {
        step: [
            (line.episode.policy_map, [turn.completion_ids for turn in line.episode.turns])
            for line in episodes_of(made.folder, step)
        ]
        for step in range(1, STEPS + 1)
    }


def states(made: Run) -> dict[str, Any]:
    found = sorted((made.folder / "checkpoints").iterdir())
    return {place.name: checkpoint.read_state(place)["league"] for place in found}


@pytest.mark.parametrize("lag", [1, 2])
def test_snapshots_play_when_they_are_certain(lag: int, tmp_path: Path) -> None:
    made = trained(tmp_path / "run", settings(lag=lag))
    seen = {
        step: {int(name.partition("@")[2]) for seating, _ in games for name in seating.values()}
        for step, games in seatings(made).items()
    }
    assert set().union(*seen.values()) > {0}
    for step, updates in seen.items():
        certain = max(0, step - 1 - lag)
        assert updates <= {certain, certain - 1}, "two snapshots are kept"
    lines = metrics(made.folder)
    assert [line["league/snapshots"] for line in lines[1:]] == [2] * STEPS
    last = checkpoint.read_state(made.folder / f"checkpoints/{STEPS:06d}")["league"]
    assert [updates for _, updates in last["snapshots"]] == [STEPS - 1, STEPS]
    assert [updates for _, updates, _ in last["retired"]] == list(range(STEPS - 1 - lag, STEPS - 1))
    games = sum(count for *_, count, _ in last["played"])
    kept = {f"base@{n}" for n in range(STEPS - 1 - lag, STEPS + 1)}
    met = [seating for games in seatings(made).values() for seating, _ in games]
    assert games == sum(bool(kept & set(seating.values())) for seating in met)


@pytest.mark.parametrize("death", [KeyboardInterrupt(), ZeroDivisionError()])
def test_an_interrupted_run_continues_with_the_same_matches(
    death: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a run whose weights do not change, so that the version that samples does not matter."""
    composed = settings(*IDLE, lag=2)
    whole, other = (Run.create(tmp_path / name, composed) for name in ("whole", "other"))
    train(Experiment(composed).load(), whole)
    update = Learner.update

    def struck(self: Learner, samples: Any, *, step: int) -> dict[str, float]:
        if step == 4:
            raise death
        return update(self, samples, step=step)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", struck)
        with pytest.raises(type(death)):
            train(Experiment(composed).load(), other)
    resumed(other, composed)
    assert_metrics_alike(other, whole)
    assert seatings(other) == seatings(whole)
    assert states(other) == states(whole)


@pytest.mark.slow
def test_a_league_on_workers_is_sampled_ahead_killed_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    arguments = ("train", *GAME, *LEAGUE, "run.steps=4", "run.episodes_every=1")
    ray = ("runtime=ray", "runtime.workers=1", "runtime.max_staleness=1", "run.name=mine")
    injected = InjectedFault(at="selfplay.train.Trainer.save", call=4)
    outcome = run(*arguments, *ray, cwd=tmp_path, cache=shared_cache(), injected=injected)
    assert outcome.code == -signal.SIGKILL, outcome.err
    outcome = run("train", "resume=runs/mine", cwd=tmp_path, cache=shared_cache())
    assert outcome.code == 0, outcome.err
    place = tmp_path / "runs/mine"
    lines = metrics(place)
    assert [line["step"] for line in lines] == list(range(5))
    for step in range(1, 5):
        records = (place / f"episodes/{step:06d}.jsonl").read_text().splitlines()
        maps = [json.loads(line)["episode"]["policy_map"] for line in records]
        certain = max(0, step - 2)
        assert {name for each in maps for name in each.values()} <= {
            f"base@{certain}",
            f"base@{certain - 1}",
        }
        assert lines[step]["policy/base/staleness_max"] <= 1
