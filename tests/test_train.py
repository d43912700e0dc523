"""Tests of run folders and of the commands `train` and `evaluate`, on which users' scripts rely."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from selfplay.config import compose
from selfplay.credit.grpo import GRPO
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import Experiment
from selfplay.run.directory import Run
from selfplay.types import Episode, Group, Sample, from_json
from tests.helpers.command_process import (
    SMOKE,
    InjectedFault,
    assert_alike,
    contents,
    copy_of_finished,
    finished,
    metrics,
    one_line,
    run,
    shared_cache,
    summary,
)
from tests.helpers.prefetched_runs import train

EVALUATIONS = ("held_out_sampled", "held_out_greedy", "proposals")


def test_the_train_command_writes_the_documented_run_folder(tmp_path: Path) -> None:
    finished()  # puts the warm start into the cache
    ran = subprocess.run(
        [sys.executable, "-m", "selfplay", "train", SMOKE, "run.name=mine"],
        cwd=tmp_path,
        env={**os.environ, "SELFPLAY_CACHE": str(shared_cache())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    place = tmp_path / "runs/mine"
    assert sorted(path.name for path in place.iterdir() if path.name[0] != ".") == [
        "checkpoints",
        "config.yaml",
        "episodes",
        "measures.json",
        "metrics.jsonl",
        "report.html",
        "sessions.json",
        "summary.json",
    ]
    assert sorted(path.name for path in (place / "episodes").iterdir()) == [
        f"{step:06d}.jsonl" for step in (1, 2, 3)
    ]
    assert sorted(path.name for path in (place / "checkpoints").iterdir()) == [
        "000001",
        "000002",
        "000003",
    ]
    assert_alike(place, finished())  # the same seed in another process


def test_metrics_have_a_line_per_step_under_the_documented_names() -> None:
    lines = [json.loads(text) for text in (finished() / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    for line in lines[1:]:
        names = {"episodes/count", "arena/solve_rate", "policy/base/loss", "curriculum/added"}
        names |= {"role/solver/reward", "role/proposer/valid", "role/solver/completion_tokens"}
        names |= {f"seconds/{phase}" for phase in ("rollout", "credit", "learn", "total")}
        assert names <= line.keys()
        assert line["policy/base/gradient_norm"] > 0
    evaluated = {
        line["step"]: {name.split("/")[1] for name in line if name.startswith("evaluation/")}
        for line in lines
    }
    assert evaluated == {
        0: set(EVALUATIONS),
        1: set(),
        2: {"held_out_sampled"},
        3: set(EVALUATIONS),
    }


def test_the_summary_has_the_evaluations_of_the_first_and_the_last_line() -> None:
    found = json.loads((finished() / "summary.json").read_text())
    lines = metrics(finished())
    assert set(found["evaluations"]) == set(EVALUATIONS)
    for name, ends in found["evaluations"].items():
        for when, line in (("before", lines[0]), ("after", lines[-1])):
            assert ends[when] == {
                key.removeprefix(f"evaluation/{name}/"): value
                for key, value in line.items()
                if key.startswith(f"evaluation/{name}/")
            }
    assert found["steps"] == 3 and found["seed"] == 0 and found["experiment"] == "tiny/smoke"
    assert found["totals"]["policy_versions"] == {"base": 3}


def test_every_episode_is_recorded_with_an_advantage_per_turn() -> None:
    lines = (finished() / "episodes/000002.jsonl").read_text().splitlines()
    (count,) = [line["episodes/count"] for line in metrics(finished()) if line["step"] == 2]
    assert len(lines) == count
    for line in map(json.loads, lines):
        episode = from_json(Episode, line["episode"])
        assert len(line["advantages"]) == len(episode.turns) > 0


def test_evaluate_returns_the_metrics_of_the_summary() -> None:
    outcome = run("evaluate", "whole", "--json", cwd=finished().parent)
    assert outcome.code == 0 and outcome.err == ""
    again = json.loads(outcome.out)
    assert again["step"] == 3
    expected = summary(finished())["evaluations"]
    assert again["evaluations"] == {name: ends["after"] for name, ends in expected.items()}


def test_evaluate_measures_the_step_that_is_named_and_the_start() -> None:
    place = finished().parent
    start = run("evaluate", "whole@start", "--json", cwd=place)
    assert start.code == 0, start.err
    expected = summary(finished())["evaluations"]
    assert json.loads(start.out) == {
        "step": 0,
        "evaluations": {name: ends["before"] for name, ends in expected.items()},
    }
    second = json.loads(run("evaluate", "whole@2", "--json", cwd=place).out)
    (line,) = [each for each in metrics(finished()) if each["step"] == 2]
    assert second["step"] == 2
    for name, value in second["evaluations"]["held_out_sampled"].items():
        assert line[f"evaluation/held_out_sampled/{name}"] == value
    for text, words in (
        ("whole@7", "kept no checkpoint of step 7; it has 1, 2, 3"),
        ("whole@begin", "'begin' is not a step; write RUN, RUN@STEP or RUN@start"),
        ("hole@2", "not a run folder"),
    ):
        refused = run("evaluate", text, cwd=place)
        assert refused.code == 2 and words in one_line(refused.err)


def test_evaluate_needs_nothing_but_the_run_folder(tmp_path: Path) -> None:
    outcome = run("evaluate", str(finished()), cwd=tmp_path, cache=tmp_path / "empty")
    assert outcome.code == 0
    assert not (tmp_path / "empty").exists()
    first, second, *_ = outcome.out.splitlines()
    assert first == f"{finished()}, step 3" and second.startswith("held_out_sampled/accuracy ")


def test_evaluate_says_that_there_is_nothing_to_evaluate(tmp_path: Path) -> None:
    folder = copy_of_finished(tmp_path)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**settings, "evaluations": {}}))
    outcome = run("evaluate", str(folder), cwd=tmp_path)
    assert outcome.code == 2 and "has no evaluations; train with some" in one_line(outcome.err)


def test_a_runs_config_reproduces_it_under_a_new_name(tmp_path: Path) -> None:
    again = ("train", "--config-path", str(finished()), "run.name=once-more")
    assert run(*again, cwd=tmp_path).code == 0
    made = tmp_path / "runs/once-more"
    assert_alike(made, finished())
    command = shlex.split(json.loads((made / "summary.json").read_text())["command"])
    assert command == ["selfplay", *again[:2], "runs/once-more", "run.name=NEW_NAME"]
    first, second = (
        yaml.safe_load((place / "config.yaml").read_text()) for place in (finished(), made)
    )
    assert second["run"].pop("name") == "once-more" and first["run"].pop("name") == "whole"
    assert first == second


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    other = ("train", "--config-path", str(finished()), "run.name=other", "seed=1", "run.steps=1")
    assert run(*other, cwd=tmp_path).code == 0
    assert metrics(tmp_path / "runs/other")[1] != metrics(finished())[1]
    name = "episodes/000001.jsonl"
    assert contents(tmp_path / "runs/other")[name] != contents(finished())[name]


def test_a_run_of_zero_steps_only_evaluates(tmp_path: Path) -> None:
    assert run("train", SMOKE, "run.name=none", "run.steps=0", cwd=tmp_path).code == 0
    place = tmp_path / "runs/none"
    assert [line["step"] for line in metrics(place)] == [0]
    ends = summary(place)["evaluations"]["held_out_sampled"]
    assert ends["before"] == ends["after"] and "accuracy" in ends["after"]


def test_a_metric_below_its_minimum_stops_the_run_and_keeps_its_folder(
    tmp_path: Path,
) -> None:
    least = "+run.minimum={role/proposr/valid: 0.1, role/proposer/valid: 1.5}"
    outcome = run("train", SMOKE, "run.name=low", least, cwd=tmp_path)
    assert outcome.code == 2
    message = one_line(outcome.err)
    assert "step 1: role/proposer/valid fell to" in message and "threshold 1.5" in message
    assert "no metric 'role/proposr/valid'; did you mean 'role/proposer/valid'?" in outcome.out
    place = tmp_path / "runs/low"
    assert [line["step"] for line in metrics(place)] == [0, 1]
    assert "role" in (place / "report.html").read_text()
    assert (place / "episodes/000001.jsonl").exists()


def test_unknown_metrics_and_steps_without_samples_are_reported(tmp_path: Path) -> None:
    quiet = ("credit=experience", "credit.measure=nonsense", "objective=sft", "run.steps=2")
    wild = ("sampler=resample", "sampler.penalty=rubbish", "sampler.group_size=1")
    outcome = run(
        "train", SMOKE, "run.name=quiet", "~objective.entropy", *quiet, *wild, cwd=tmp_path
    )
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("step 1: credit made no samples") == 1
    assert "step 2: credit made no samples" not in outcome.out, (
        "only the first such step is reported"
    )
    rows = metrics(tmp_path / "runs/quiet")[1:]
    assert [line["policy/base/learned"] for line in rows] == [0, 0]
    assert "base learned 1" not in outcome.out
    assert "credit.measure: none of" in outcome.out and "'nonsense'" in outcome.out
    assert "sampler.penalty: none of" in outcome.out and "'rubbish'" in outcome.out
    assert [line["credit/zero_advantages"] for line in metrics(tmp_path / "runs/quiet")[1:]] == [
        1,
        1,
    ]


def test_limits_with_a_schedule_are_those_of_the_step(tmp_path: Path) -> None:
    heat = "sampling.default.temperature={steps: [1, 3], values: [1.0, 0.5]}"
    turns = "rollout.max_turns={steps: [1, 3], values: [90, 99], between: constant}"
    outcome = run("train", SMOKE, "run.name=cooling", heat, turns, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    place = tmp_path / "runs/cooling"
    rows = metrics(place)[1:]
    assert [row["limit/solver/temperature"] for row in rows] == [1.0, 0.75, 0.5]
    assert [row["limit/max_turns"] for row in rows] == [90, 90, 99]
    for step, temperature in enumerate((1.0, 0.75, 0.5), start=1):
        lines = (place / f"episodes/{step:06d}.jsonl").read_text().splitlines()
        played = [from_json(Episode, json.loads(line)["episode"]) for line in lines]
        assert {turn.temperature for episode in played for turn in episode.turns} == {temperature}


def test_a_loss_that_is_not_finite_stops_the_run_naming_step_and_samples(tmp_path: Path) -> None:
    # The entropy bonus overflows in the loss of the first step.
    wild = ("train", SMOKE, "run.name=wild", "objective.entropy=1e39")
    outcome = run(*wild, "learner.max_skipped=0", cwd=tmp_path)
    assert outcome.code == 2
    message = one_line(outcome.err)
    assert "at step 1 on sample 1.0." in message and "the loss is" in message
    place = tmp_path / "runs/wild"
    assert [line["step"] for line in metrics(place)] == [0]
    assert (place / "report.html").exists()


def test_steps_that_are_not_finite_are_skipped_counted_and_bounded_also_after_a_resume(
    tmp_path: Path,
) -> None:
    wild = ("run.name=wild", "objective.entropy=1e39", "learner.max_skipped=1")
    first = run("train", SMOKE, *wild, "run.checkpoint_every=1", cwd=tmp_path)
    again = run("train", "resume=runs/wild", cwd=tmp_path)
    for outcome in (first, again):  # the second begins after step 1
        assert outcome.code == 2
        assert "; 2 steps in a row had such a fault" in one_line(outcome.err)
    assert "step 1: 1 optimizer step(s) of policy 'base' skipped" in first.out
    assert "step 1: " not in again.out
    rows = metrics(tmp_path / "runs/wild")
    assert [row["step"] for row in rows] == [0, 1]
    assert rows[1]["policy/base/skipped"] == 1 and "policy/base/loss" not in rows[1]


def test_the_name_of_a_run_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "runs/taken").mkdir(parents=True)
    late = InjectedFault(at="selfplay.experiment.experiment.Experiment.__init__")
    outcome = run("train", SMOKE, "run.name=taken", cwd=tmp_path, injected=late)
    assert outcome.code == 2
    assert "runs/taken exists" in one_line(outcome.err)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    late = InjectedFault(at="selfplay.experiment.experiment.Experiment.__init__")
    outcome = run("train", SMOKE, "run.folder=file/runs", cwd=tmp_path, injected=late)
    assert outcome.code == 2
    assert "cannot write to file/runs" in one_line(outcome.err)


def test_runs_without_a_name_get_different_ones(tmp_path: Path) -> None:
    for _ in range(2):
        outcome = run("train", SMOKE, "run.steps=0", cwd=tmp_path)
        assert outcome.code == 0, outcome.err
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(names) == 2 and all(name.startswith("tiny-smoke-seed0-") for name in names)


def test_metrics_count_program_runs_from_step_0_on() -> None:
    first, *later = metrics(finished())
    assert first["step"] == 0 and first["service/executor/ok"] > 0
    assert all(line["service/executor/ok"] > 0 for line in later)


class LateTensor(GRPO):
    """A credit method that has a tensor in its state after its first step."""

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        self.mean = torch.ones(1)
        return super().assign(groups)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean} if hasattr(self, "mean") else {}


def test_a_state_that_no_checkpoint_can_hold_ends_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFPLAY_CACHE", str(shared_cache()))
    tiny = ["warmstart.steps=2", "warmstart.batch=8", "warmstart.demonstrations.hands=50"]
    rare = ["run.steps=9", "run.checkpoint_every=9", "evaluations=none", "run.threads=1"]
    composed = compose.load(["+experiment=tiny/kuhn", *tiny, *rare])
    composed["credit"] = {"_target_": f"{__name__}.LateTensor", "group_by": "agent"}
    made = Run.create(tmp_path / "run", composed)
    with pytest.raises(ConfigError, match=r"^credit: LateTensor\.state_dict has 'mean', which a"):
        train(Experiment(composed).load(), made)
    assert [line["step"] for line in metrics(made.folder)] == [0]
