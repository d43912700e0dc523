"""Tests of the tiny service desk with a customer that learns."""

from pathlib import Path

import pytest

from selfplay.cli.main import main
from selfplay.run.record_reader import read_metrics

pytestmark = pytest.mark.usefixtures("without_charts")

BRIEF = ["run.steps=1", "evaluations.served.tasks.count=3", "curriculum.tasks.count=30"]
BRIEF += ["curriculum.batch=3", "sampler.group_size=4", "arena.answers=2"]
BRIEF += ["warmstart.steps=20", "warmstart.batch=8", "objective.entropy=0.01"]


@pytest.mark.parametrize(
    ("overrides", "learning"),
    [
        (["arena.user=cooperative"], {"agent", "user"}),
        (["arena.user=adversarial"], {"agent", "user"}),
        (["arena.user=adversarial", "+population.overrides.agent.learn=false"], {"user"}),
    ],
)
def test_policies_that_learn_have_gradients(
    tmp_path: Path, overrides: list[str], learning: set[str]
) -> None:
    arguments = ["train", "+experiment=tiny/desk_customer", "run.name=run", "run.threads=1"]
    assert main([*arguments, f"run.folder={tmp_path}", *BRIEF, *overrides]) == 0
    before, line = read_metrics(tmp_path / "run/metrics.jsonl").values()
    for name in ("served", "own"):
        assert 0.0 <= before[f"evaluation/{name}/success"] <= 1.0
    for name in ("agent", "user"):
        assert (line.get(f"policy/{name}/gradient_norm", 0.0) > 0) == (name in learning)
