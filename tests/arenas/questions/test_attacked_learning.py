"""Tests of the tiny game of attacked answers: solver and adversary learn."""

from pathlib import Path

import pytest

from selfplay.cli.main import main
from selfplay.run.record_reader import read_metrics

pytestmark = pytest.mark.usefixtures("without_charts")

BRIEF = ["run.steps=2", "evaluations.adversary.tasks.count=4", "curriculum.tasks.count=40"]
BRIEF += ["curriculum.batch=8", "warmstart.steps=60", "warmstart.batch=16"]


def ran(folder: Path, *overrides: str) -> list[dict[str, float]]:
    """Train; return the metrics, one entry from before the first step and one per step."""
    arguments = ["train", "+experiment=tiny/attacked_answers", "run.name=run", "run.threads=1"]
    assert main([*arguments, f"run.folder={folder}", *BRIEF, *overrides]) == 0
    return list(read_metrics(folder / "run/metrics.jsonl").values())


def test_solver_and_adversary_learn(tmp_path: Path) -> None:
    before, first, second = ran(tmp_path, "objective.entropy=0.01")
    for name in ("adversary", "attacked", "advised", "alone"):
        assert 0.0 <= before[f"evaluation/{name}/accuracy"] <= 1.0
    for line in (first, second):
        assert line["policy/solver/gradient_norm"] > 0
        assert line["policy/adversary/gradient_norm"] > 0
        assert line["role/solver/reward"] == -line["role/adversary/reward"]


def test_a_frozen_adversary_does_not_learn(tmp_path: Path) -> None:
    override = "+population.overrides.adversary.learn=false"
    _, first, second = ran(tmp_path, override, "objective.entropy=0.01")
    for line in (first, second):
        assert line["policy/solver/gradient_norm"] > 0
        assert "policy/adversary/gradient_norm" not in line
