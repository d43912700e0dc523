"""Tests of the tiny reader of long texts: a few steps, and the gain from training."""

import json
from pathlib import Path

import pytest

from tests.helpers.command_process import run

BRIEF = (
    *("warmstart.steps=20", "warmstart.batch=16", "warmstart.micro_batch=16", "run.steps=2"),
    *("curriculum.batch=2", "sampler.group_size=2"),
    *(f"evaluations.parts_{parts}.tasks.count=2" for parts in (4, 8, 16, 32)),
)


def lines(folder: Path, *overrides: str) -> list[dict[str, float]]:
    """Run the experiment and return the lines of its metrics."""
    command = ("train", "+experiment=tiny/long_text", "run.name=run", "run.threads=1")
    outcome = run(*command, *overrides, cwd=folder)
    assert outcome.code == 0, outcome.err
    return list(map(json.loads, (folder / "runs/run/metrics.jsonl").read_text().splitlines()))


def test_a_reader_learns_from_all_its_turns(tmp_path: Path) -> None:
    *_, last = lines(tmp_path, *BRIEF)
    # Two texts are read twice, with a turn for each of four parts and one for the answer.
    assert last["policy/base/samples"] == 2 * 2 * 5
    assert {"evaluation/parts_4/accuracy", "evaluation/parts_32/accuracy"} <= set(last)


@pytest.mark.slow
def test_training_on_four_parts_transfers_to_thirty_two(tmp_path: Path) -> None:
    before, *_, after = lines(tmp_path)
    for parts in (4, 8, 16, 32):
        name = f"evaluation/parts_{parts}/accuracy"
        assert after[name] >= before[name] + 0.2
