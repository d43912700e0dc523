"""Tests that run every benchmark at its smallest size. The measured speed is not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.repository import ROOT

SCRIPTS = ROOT / "scripts"
SMALLEST = {
    "step": ["--steps", "1", "run.threads=1"],
    "batch": ["--rounds", "1"],
    "fill": ["--rounds", "1"],
    "busy": ["--rounds", "1", "--busy", "1"],
    "packing": ["--rounds", "1"],
    "generation": ["warmstart.steps=1", "--rounds", "1", "--cases", "kuhn"],
    "adapters": ["--adapters", "2", "--requests", "1", "--rounds", "1"],
    "rollout": ["--hands", "20", "--rounds", "1"],
    "tools": ["--episodes", "4", "--rounds", "1"],
    "executor": ["--runs", "20"],
    "waiting": ["--moves", "1"],
    "games": ["--games", "4", "--rows", "2", "--turns", "2", "--rounds", "1"],
    "ranks": ["--ranks", "2", "--layers", "1", "--hidden", "128"],
    "records": ["--rounds", "1"],
    "record_thread": ["--rounds", "1"],
    "weights": ["--megabytes", "8", "--rounds", "1"],
    "weights_parts": ["--megabytes", "16", "--rounds", "1"],
    "worker_start": ["--rounds", "1"],
    "workers": ["--hands", "200", "--rounds", "1"],
    "checkpoint": ["--rounds", "1", "--updates", "1"],
    "rank_checkpoint": ["--layers", "1", "--hidden", "64", "--rounds", "1"],
    "async": ["--steps", "1", "--rounds", "1", "warmstart.steps=1"],
    "overlap": ["--steps", "1", "--seconds", "0.01", "--games", "4"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines.json"
    ran = subprocess.run(
        [sys.executable, SCRIPTS / f"bench_{name}.py", "--json", lines, *SMALLEST[name]],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=SCRIPTS.parent,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(lines.read_text(encoding="utf-8"))
    assert found and all(line["ours"] > 0 for line in found)


def test_every_benchmark_is_tried() -> None:
    there = {path.stem.removeprefix("bench_") for path in SCRIPTS.glob("bench_*.py")}
    shared = {"table", "timing"}
    elsewhere = {"peers", "peers_smollm2", "vllm_steps"}  # they need other environments
    assert there - shared - elsewhere == set(SMALLEST)
