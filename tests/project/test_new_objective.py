"""Tests of the page about a new objective: the printed code passes its tests and trains."""

import math
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from selfplay import PolicyLoss
from selfplay.types import Sample
from tests.helpers.builders import sample
from tests.helpers.command_process import metrics, run
from tests.helpers.repository import ROOT
from tests.project.test_documentation import commands, files

PAGE = "new_objective.md"


def test_the_printed_objective_passes_its_test_and_trains(tmp_path: Path) -> None:
    printed = files(PAGE)
    assert len(printed) == 3
    for name, text in printed.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    tested, checked, trained, _ = commands(PAGE)
    command = [sys.executable, *tested[1:], "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr
    outcome = run(*checked[1:], cwd=tmp_path)
    assert outcome.code == 0 and "no faults" in outcome.out, outcome.out
    short = ("run.steps=2", "warmstart.steps=20", "evaluations=none", "run.threads=1")
    small = ("sampler.group_size=4", "curriculum.batch=3")
    outcome = run(*trained[1:], *short, *small, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    rows = metrics(tmp_path / "runs/gate")
    assert any(row.get("policy/base/policy_kl", 0) > 0 for row in rows)


def test_the_printed_prepare_asks_for_the_probability_of_another_text() -> None:
    """The best completion has two tokens, each with log-probability -1 after any prompt."""
    page = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    printed = page.partition("## The probability of another text")[2].partition("```python\n")[2]
    body = textwrap.indent(printed.partition("```")[0], "    ")
    names: dict[str, Any] = {"math": math, "replace": replace, "PolicyLoss": PolicyLoss}
    exec(f"class Belief(PolicyLoss):\n{body}", names)
    asked: list[Sample] = []

    def score(samples: Sequence[Sample]) -> list[list[float]]:
        asked.extend(samples)
        return [[-1.0] * len(each.turn.completion_ids) for each in samples]

    samples = [sample([1], [7], -0.5), sample([2], [8, 9], 0.5)]
    prepared, metrics = names["Belief"]().prepare(samples, score)
    assert [each.turn.completion_ids for each in asked[:2]] == [(8, 9)] * 2
    assert [len(each.turn.loss_mask) for each in asked[:2]] == [2, 2]
    assert [each.turn.prompt_ids for each in asked[:2]] == [(1,), (2,)]
    assert metrics["belief"] == pytest.approx(math.exp(-2)) and len(prepared) == 2


def test_the_page_names_all_that_the_library_reads_from_an_objective() -> None:
    from selfplay.learner.objective import LossInputs, Objective

    text = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    members = [name for name in vars(Objective) if not name.startswith("_")]
    named = [*members, *LossInputs.__dataclass_fields__]
    assert len(members) >= 10
    assert not [name for name in named if f"`{name}" not in text]
