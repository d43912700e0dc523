"""Tests of learning with tools: trained tiny models call a tool where that raises the reward."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def trained(folder: Path, experiment: str, *overrides: str) -> dict[str, dict[str, float]]:
    """Run an experiment and return its held-out evaluation, before and after."""
    command = [sys.executable, "-m", "selfplay", "train", f"+experiment={experiment}"]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    settings = ["run.name=run", "run.threads=1", *overrides]
    subprocess.run([*command, *settings], cwd=folder, env=environment, check=True)
    summary = json.loads((folder / "runs/run/summary.json").read_text())
    found: dict[str, dict[str, float]] = summary["evaluations"]["held_out"]
    return found


def test_with_a_price_the_calculator_is_called_for_hard_sums_only(tmp_path: Path) -> None:
    found = trained(tmp_path, "tiny/tools")
    assert found["after"]["accuracy"] - found["before"]["accuracy"] > 0.4
    assert found["after"]["easy/tool_calls"] < 0.2 and found["after"]["hard/tool_calls"] > 0.9


def test_without_a_price_it_is_called_for_all_sums(tmp_path: Path) -> None:
    found = trained(tmp_path, "tiny/tools", "shaping=none", "objective.kl=0")
    assert found["after"]["accuracy"] - found["before"]["accuracy"] > 0.4
    assert found["after"]["easy/tool_calls"] > 0.8 and found["after"]["hard/tool_calls"] > 0.9


def test_a_corpus_is_searched_as_often_as_the_question_needs(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    found = trained(tmp_path, "tiny/search")
    assert found["after"]["accuracy"] - found["before"]["accuracy"] > 0.4
    assert found["after"]["hops_2/tool_calls"] > found["after"]["hops_1/tool_calls"] + 0.5
