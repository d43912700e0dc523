"""Test of tiny/zero_search with a simulator that learns from opposed rewards."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from selfplay.cli.main import main

pytestmark = pytest.mark.usefixtures("without_charts")


class EarlyLetters:
    """A verifier that accepts first letters from A to M, which a model gives by chance."""

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        return float("A" <= answer[:1].upper() <= "M")


def test_opposed_pay_reaches_a_simulator_that_learns(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    overrides = [
        *("arena.simulator_pay=opposed", "population.overrides.simulator.learn=true"),
        "arena.verifier={_target_: tests.experiment.test_zero_search_run.EarlyLetters}",
        *("curriculum.start=0.5", "curriculum.curriculum.batch=4", "sampler.group_size=4"),
        *("warmstart.steps=100", "warmstart.batch=32", "warmstart.micro_batch=32"),
        *("warmstart.model.hidden=32", "warmstart.model.layers=1", "warmstart.model.heads=2"),
        *("warmstart.model.intermediate=64", "warmstart.demonstrations.practice=0.5"),
        *("evaluations=none", "run.steps=2", "run.episodes_every=1", "run.threads=1"),
        *("run.name=r", f"run.folder={tmp_path}"),
    ]
    assert main(["train", "+experiment=tiny/zero_search", *overrides]) == 0
    lines = (tmp_path / "r/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines if '"role/simulator/reward"' in line]
    assert len(steps) == 2
    for step in steps:
        assert step["episodes/failed"] == 0
        assert step["policy/simulator/learned"] == step["policy/solver/learned"] == 1
        assert step["policy/simulator/idle_samples"] < step["policy/simulator/samples"]
    paid = set()
    for path in (tmp_path / "r/episodes").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            turns = json.loads(line)["episode"]["turns"]
            score = sum(turn["reward"] for turn in turns if turn["role"] == "solver")
            for turn in (turn for turn in turns if turn["role"] == "simulator"):
                kind = turn["info"].get("verdict", "malformed")
                due = {"useful": score, "noisy": -score, "malformed": -1.0}[kind]
                assert turn["reward"] == due
                paid.add((kind, due))
    assert {("useful", 1.0), ("noisy", -1.0)} <= paid
