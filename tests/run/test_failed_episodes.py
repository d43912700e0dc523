"""Tests of failed episodes and timeouts: a run reports them, and keeps the failed episodes."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from selfplay.arena import Arena
from selfplay.cli.stage import print_summary
from selfplay.credit.grpo import GRPO
from selfplay.rollout.evaluation import Evaluation
from selfplay.run.declarations import RunMetrics
from selfplay.run.directory import Run
from selfplay.run.metrics import describe_troubles, of_episodes, of_troubles
from selfplay.run.record_reader import read_metrics, read_summary, recorded_steps
from selfplay.train import Trainer
from selfplay.types import Group, Status, Task
from tests.helpers.builders import episode, turn
from tests.helpers.command_process import finished, summary

FINE = episode(turn("solver_0", 1.0))
BROKEN = episode(turn("solver_0", 0.0), status=Status.FAILED, error="KeyError: 'a'")
TOO_LONG = episode(status=Status.FAILED, error="PromptTooLong: 9 tokens")
GROUP = Group(id="g", episodes=(FINE, BROKEN, TOO_LONG))


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_failed_episodes_are_kept_at_every_step(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    for step, whole in ((1, True), (2, False), (3, False), (4, False)):
        run.record(
            step, {}, [GROUP if step != 4 else Group(id="h", episodes=(FINE,))], [], whole=whole
        )
    assert recorded_steps(run.folder) == [1]
    assert len(_lines(run.folder / "episodes/000001.jsonl")) == 3
    for step in (1, 2, 3):
        lines = _lines(run.folder / f"failed/{step:06d}.jsonl")
        assert [(line["group"], line["member"]) for line in lines] == [("g", 1), ("g", 2)]
        assert [line["episode"]["error"] for line in lines] == [BROKEN.error, TOO_LONG.error]
    assert not (run.folder / "failed/000004.jsonl").exists()

    run.set_aside(2, 1, {})
    assert [path.name for path in (run.folder / "rolled_back/1/failed").iterdir()] == [
        "000003.jsonl"
    ]
    run.rewind(2)
    assert sorted(path.name for path in (run.folder / "failed").iterdir()) == [
        "000001.jsonl",
        "000002.jsonl",
    ]


def test_failed_episodes_of_evaluations_are_kept(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    evaluated = Group(id="evaluation/held_out", episodes=(FINE, TOO_LONG))
    run.record(0, {}, [], [], evaluated=[evaluated])
    run.record(1, {}, [GROUP], [], evaluated=[evaluated])
    run.record(2, {}, [], [], evaluated=[Group(id="evaluation/held_out", episodes=(FINE,))])
    (line,) = _lines(run.folder / "failed/000000.jsonl")
    assert (line["group"], line["member"]) == ("evaluation/held_out", 1)
    assert line["episode"]["error"] == TOO_LONG.error
    groups = [line["group"] for line in _lines(run.folder / "failed/000001.jsonl")]
    assert groups == ["g", "g", "evaluation/held_out"]
    assert not (run.folder / "failed/000002.jsonl").exists()
    assert recorded_steps(run.folder) == [1], "evaluations are not in the record of episodes"


def test_the_training_loop_records_failed_evaluation_episodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Test the evaluations before training and at a step; each of their episodes fails."""
    task = Task(id="t")
    evaluation = Evaluation(arena=Arena, tasks=[task], metrics={"accuracy": "accuracy"}, every=2)
    monkeypatch.setattr(Trainer, "save", lambda self: None)
    silent: Any = SimpleNamespace(phase=print, note=print, evaluation=print)
    drained = list[None]()
    experiment: Any = SimpleNamespace(
        evaluations={"held_out": (evaluation, lambda specs: [TOO_LONG for _ in specs])},
        players=SimpleNamespace(drain_counts=lambda: drained.append(None)),
        batches=SimpleNamespace(paused=nullcontext),
        curriculum=SimpleNamespace(ready=lambda: True),
        outcomes=SimpleNamespace(complete=dict),
        collapse=SimpleNamespace(observe=lambda step, metrics: {}),
        drain_service_metrics=dict,
        settings=SimpleNamespace(steps=9, async_checkpoints=False),
        credit=GRPO(),
        seed=0,
    )
    run = Run.create(tmp_path / "run", {})
    trainer = Trainer(experiment, run, silent)
    trainer.initialize()
    (line,) = _lines(run.folder / "failed/000000.jsonl")
    assert (line["group"], line["member"]) == ("evaluation/held_out", 0)
    assert line["episode"]["error"] == TOO_LONG.error

    drained.clear()
    metrics, groups = trainer.evaluate_due(2)
    assert len(drained) == 1, "counts of the evaluation are not part of a step"
    assert metrics["evaluation/held_out/failed_episodes"] == 1
    assert [(group.id, group.episodes) for group in groups] == [
        ("evaluation/held_out", (TOO_LONG,))
    ]
    assert trainer.evaluate_due(3) == ({}, [])
    assert len(drained) == 1, "counts of games that are sampled ahead are kept"


ROWS = [
    {"service/executor/timeout": 5.0, "service/executor/ok": 90.0, **of_episodes(GROUP.episodes)},
    {"service/executor/timeout": 1207.0, "service/executor/stalled": 1.0},
    {**of_episodes([FINE, BROKEN]), "evaluation/held_out/timeout": 9.0},
    {"evaluation/held_out/failed_episodes": 2.0, "evaluation/others/failed_episodes": 1.0},
]


def test_troubles_are_summed_over_steps() -> None:
    troubles = of_troubles(ROWS)
    assert troubles == {
        "failed_episodes": 3,
        "failed_evaluation_episodes": 3,
        "stalled": 1,
        "timeout": 1212,
        "failed_kinds": {"KeyError": 2, "PromptTooLong": 1},
    }
    assert describe_troubles(troubles) == (
        "1,212 program runs timed out, 1 program run stalled, 3 episodes failed "
        "(KeyError: 2, PromptTooLong: 1), 3 episodes of evaluations failed: "
        "the groups of this run therefore differ from those of a run without these faults"
    )


def test_a_run_without_troubles_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert of_troubles([{"service/executor/ok": 9.0, **of_episodes([FINE])}]) == {}
    assert describe_troubles({}) == ""
    ended = {"experiment": "x", "steps": 1, "seconds": 1.0, "evaluations": {}, "troubles": {}}
    print_summary(ended, RunMetrics())
    assert len(capsys.readouterr().out.strip().splitlines()) == 1
    print_summary({**ended, "troubles": of_troubles(ROWS)}, RunMetrics())
    assert capsys.readouterr().out.splitlines()[-1] == describe_troubles(of_troubles(ROWS))


def test_a_run_has_its_troubles_in_its_summary() -> None:
    folder = finished()
    rows = read_metrics(folder / "metrics.jsonl").values()
    assert summary(folder)["troubles"] == of_troubles(rows)
    read = read_summary(folder / "summary.json")
    assert read is not None and read.troubles == of_troubles(rows)
