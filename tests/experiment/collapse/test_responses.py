"""Tests of the responses to a collapse, in training runs whose collapse is forced."""

import gc
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from selfplay.config import compose
from selfplay.curriculum.fixed import FixedTasks
from selfplay.errors import CollapsedError, ConfigError, RunError
from selfplay.experiment.collapse import CollapseMonitor
from selfplay.experiment.collapse.responses import MixAnchors
from selfplay.experiment.experiment import Experiment, check
from selfplay.learner import checkpoint
from selfplay.rng import derive
from selfplay.run.directory import Run
from selfplay.run.progress import Progress
from selfplay.run.report.run_report import alarms, write_report
from selfplay.sampler.prefetch import OnDemandBatches
from selfplay.train import Trainer
from selfplay.types import Group
from tests.helpers.command_process import contents, metrics, shared_cache

SEED, STEPS = 0, 7
RULE = {
    "metric": "curriculum/health",
    "direction": "decrease",
    "threshold": 0.5,
    "window": 2,
    "patience": 2,
}


class Frail(FixedTasks):
    """Tasks that report a collapse from step 4 on, if games are played with the run's seed."""

    always = False

    def observe(self, groups: Sequence[Group], step: int) -> None:
        """Check if the games have the run's seed."""
        group = groups[0]
        first = derive(SEED, step, 0, 0, group.episodes[0].task.id)
        self.sick = step >= 4 and (self.always or group.episodes[0].seed == first)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the tasks, with a health of 0 or 1."""
        return {**super().metrics(), "health": float(not self.sick)}


class Hopeless(Frail):
    """Tasks that report a collapse from step 4 on, with every seed."""

    always = True


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFPLAY_CACHE", str(shared_cache()))


def settings(*changes: str, tasks: type = Frail, **rule: Any) -> dict[str, Any]:
    tiny = ["warmstart.steps=2", "warmstart.batch=8", "warmstart.demonstrations.hands=50"]
    tiny += ["sampler.group_size=2", "run.threads=1"]
    often = ["run.checkpoint_every=1", "run.episodes_every=1", "evaluations=none"]
    run = [f"run.steps={STEPS}", "run.keep_checkpoints=1", "run.async_checkpoints=true"]
    composed = compose.load(["+experiment=tiny/kuhn", *tiny, *often, *run, *changes])
    composed["curriculum"]["_target_"] = f"{__name__}.{tasks.__name__}"
    composed["collapse"]["rules"] = {"health": {**RULE, **rule}}
    return composed


def train(experiment: Experiment, run: Run) -> str:
    """Train, and return the printed messages; a CollapsedError contains them too."""
    console = Console(file=io.StringIO(), width=400, _environ={})
    try:
        with Progress(STEPS, "run", console) as progress:
            Trainer(experiment, run, progress).run()
    except CollapsedError as error:
        raise CollapsedError(f"{error}\n{console.file.getvalue()}") from None  # type: ignore[attr-defined]
    finally:
        experiment.close()
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def trained(place: Path, composed: dict[str, Any]) -> tuple[Run, str]:
    run = Run.create(place, composed)
    return run, train(Experiment(composed).load(), run)


def steps(place: Path) -> list[int]:
    return [line["step"] for line in metrics(place)]


def test_a_run_goes_back_with_other_seeds_and_keeps_the_steps_it_left(tmp_path: Path) -> None:
    run, printed = trained(tmp_path / "run", settings("collapse=roll_back"))
    # The mean of two steps is below 0.5 at step 5 for the first time, and it includes step 4.
    assert "step 6: signs of collapse: health: curriculum/health fell to 0 (mean of 2)" in printed
    assert "it began by step 4" in printed and "going back to checkpoint 000003" in printed
    assert steps(run.folder) == list(range(STEPS + 1))
    left = run.folder / "rolled_back" / "1"
    assert steps(left) == [4, 5, 6]
    assert [line["collapse/health"] for line in metrics(left)] == [0, 0, 1]
    assert [line["curriculum/health"] for line in metrics(left)] == [0, 0, 0]
    after = metrics(run.folder)[4:]
    assert [line["curriculum/health"] for line in after] == [1] * 4
    assert [line["collapse/returned"] for line in after] == [1] * 4
    why = json.loads((left / "why.json").read_text())
    assert (why["from"], why["to"]) == (6, 3) and "curriculum/health" in why["alarms"][0]
    episodes = sorted(path.name for path in (left / "episodes").iterdir())
    assert episodes == ["000004.jsonl", "000005.jsonl", "000006.jsonl"]
    first, second = (
        json.loads((place / "episodes/000004.jsonl").read_text().splitlines()[0])["episode"]
        for place in (left, run.folder)
    )
    # Both were played by the policy as it was after three updates, in different games.
    assert first["turns"][0]["version"] == second["turns"][0]["version"] == 3
    assert first["seed"] != second["seed"]
    page = write_report(run.folder).read_text()
    assert "went back from step 6 to 3: health: curriculum/health fell" in page


def test_a_league_goes_back_with_the_run(tmp_path: Path) -> None:
    changes = ["collapse=roll_back", "league=uniform", "league.players.default.add.updates=1"]
    run, _ = trained(tmp_path / "run", settings(*changes))
    left, kept = metrics(run.folder / "rolled_back/1"), metrics(run.folder)
    # Every update adds a snapshot, in the steps that were left and in those that were kept.
    assert [line["league/snapshots"] for line in left] == [5, 6, 7]
    assert [line["league/snapshots"] for line in kept[1:]] == [2, 3, 4, 5, 6, 7, 8]


class Killed(BaseException):
    """An exception that simulates the end of the process."""


KILLS = {
    "before anything is set aside": "selfplay.run.directory.Run.set_aside",
    "before the checkpoint is read": "selfplay.experiment.experiment.Experiment.restore",
    "before a checkpoint records the rollback": "selfplay.train.Trainer.save",
    "before the later checkpoints are dropped": "selfplay.learner.checkpoint.drop_after",
    "before the record is cut": "selfplay.run.directory.Run.rewind",
}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFPLAY_CACHE", str(shared_cache()))
        place = tmp_path_factory.mktemp("unbroken") / "run"
        return trained(place, settings("collapse=roll_back", "run.keep_checkpoints=2"))[0].folder


@pytest.mark.parametrize(
    "when",
    [
        pytest.param(when, marks=pytest.mark.slow if place % 2 else ())
        for place, when in enumerate(KILLS)
    ],
)
def test_a_run_killed_during_a_rollback_resumes_identically(
    when: str, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = settings("collapse=roll_back", "run.keep_checkpoints=2")
    experiment, run = Experiment(composed).load(), Run.create(tmp_path / "run", composed)
    back = Trainer.rollback

    def struck(*arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(KILLS[when], lambda *a, **k: (_ for _ in ()).throw(Killed()))
            back(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "rollback", struck)
        with pytest.raises(Killed):
            train(experiment, run)
    del experiment
    gc.collect()
    place, faults = checkpoint.latest(run.folder / "checkpoints")
    assert place is not None and not faults
    again = Experiment(composed).load(place)
    run.rewind(again.step)
    train(again, run)
    assert metrics(run.folder) == metrics(unbroken)
    assert metrics(run.folder / "rolled_back/1") == metrics(unbroken / "rolled_back/1")
    ours, theirs = contents(run.folder), contents(unbroken)
    assert {name for name in ours if "metrics" not in name} == {
        name for name in theirs if "metrics" not in name
    }
    assert all(ours[name] == theirs[name] for name in ours if "episodes" in name)


def test_a_run_ends_with_the_diagnosis_after_the_last_rollback(
    tmp_path: Path,
) -> None:
    composed = settings("collapse=roll_back", "collapse.response.times=1", tasks=Hopeless)
    with pytest.raises(CollapsedError) as caught:
        trained(tmp_path / "run", composed)
    error = str(caught.value).splitlines()[0]
    assert "step 6: collapsing again after going back 1 time(s): health: curriculum/health" in error
    assert "lower learning rate" in error
    assert steps(tmp_path / "run") == list(range(7)) and steps(tmp_path / "run/rolled_back/1")


def test_a_run_without_an_earlier_checkpoint_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        CollapseMonitor, "spare", lambda self: None
    )  # as if all checkpoints were deleted
    with pytest.raises(CollapsedError, match="no whole checkpoint is left from before step 4"):
        trained(tmp_path / "run", settings("collapse=roll_back"))


def test_stopping_names_the_rule_and_leaves_the_record(tmp_path: Path) -> None:
    with pytest.raises(CollapsedError, match=r"^step 6: collapsing: health: .* by step 4; begin"):
        trained(tmp_path / "run", settings("collapse=stop"))
    assert steps(tmp_path / "run") == list(range(7))


def test_a_warning_is_printed_once_and_recorded_at_every_step(tmp_path: Path) -> None:
    run, printed = trained(tmp_path / "run", settings("collapse=warn"))
    assert printed.count("signs of collapse") == 1
    fires = [line["collapse/health"] for line in metrics(run.folder)[1:]]
    assert fires == [0, 0, 0, 0, 0, 1, 1]
    assert "health fired at step 6 to 7" in write_report(run.folder).read_text()


def test_anchors_are_mixed_in_until_a_step() -> None:
    class League:
        asked: list[tuple[float, int]]

        def __init__(self) -> None:
            self.asked = []

        def mix_anchors(self, share: float, *, until: int) -> None:
            self.asked.append((share, until))

    league = League()
    monitor = CollapseMonitor(response=MixAnchors(share=0.4, steps=10), rules={"health": RULE})
    for step in range(1, 8):
        monitor.observe(step, {"curriculum/health": float(step < 4)})
        assert monitor.respond(step, checkpoints=Path("nowhere"), league=league) is None
    assert league.asked == [(0.4, 16), (0.4, 17)]


def test_without_a_league_games_are_played_by_the_rollout_itself() -> None:
    experiment = Experiment(settings()).load()
    try:
        assert experiment.league is None and not experiment.state_dict()["league"]
        assert isinstance(experiment.batches, OnDemandBatches)
        assert experiment.batches.rollout_fn is experiment.rollout_fn
    finally:
        experiment.close()
    with pytest.raises(ConfigError, match="choose league=anchors"):
        MixAnchors().answer([], step=1, league=None)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (["+experiment=tiny/kuhn"], "needs a league; choose league=anchors"),
        (["+experiment=tiny/kuhn", "league=pfsp"], "needs anchors in the league"),
        (
            ["+experiment=tiny/tic_tac_toe", "league=pfsp", "league.anchors=[]"],
            "needs anchors in the league",
        ),
    ],
)
def test_anchors_need_a_league_that_has_some(changes: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=rf"collapse\.response: MixAnchors {complaint}"):
        check(compose.load([*changes, "collapse=mix_anchors"]))
    check(compose.load(["+experiment=tiny/tic_tac_toe_league", "collapse=mix_anchors"]))


def test_an_unreadable_record_of_a_rollback_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "rolled_back/1").mkdir(parents=True)
    (tmp_path / "rolled_back/1/why.json").write_text('{"from": 3}')
    with pytest.raises(RunError, match=r"rolled_back/1/why\.json: cannot be read"):
        alarms(tmp_path, {})


def test_consecutive_steps_of_an_alarm_are_reported_together() -> None:
    rows = {
        step: {"collapse/a": float(step in (2, 3, 5)), "collapse/returned": 1.0}
        for step in range(7)
    }
    expected = ["a fired at step 2 to 3", "a fired at step 5"]
    assert alarms(Path("nowhere"), rows) == expected
