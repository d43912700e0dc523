"""Tests of self-play at tic-tac-toe: pure self-play collapses, and a league prevents it."""

import json
from pathlib import Path
from typing import Any

import pytest

from selfplay.cli.main import main
from selfplay.run.report.run_report import read_metrics
from tests.helpers.command_process import shared_cache

pytestmark = pytest.mark.usefixtures("without_charts")

SEEDS = (0, 1, 2)
TINY = (
    "run.steps=2",
    "curriculum.batch=4",
    "sampler.group_size=2",
    "evaluations.anchors.samples=2",
    "evaluations.anchors.every=1",
    "warmstart.steps=2",
    "warmstart.batch=8",
    "warmstart.demonstrations.hands=20",
    "warmstart.model={hidden: 16, layers: 1, heads: 2, intermediate: 16, positions: 32}",
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SELFPLAY_CACHE", str(shared_cache()))


def trained(experiment: str, *overrides: str) -> Path:
    """Train, and return the run folder."""
    name = f"{Path(experiment).name}-{len(list(Path().glob('runs/*')))}"
    arguments = ["train", f"+experiment={experiment}", f"run.name={name}", "run.threads=1"]
    assert main([*arguments, *overrides]) == 0
    return Path("runs") / name


def anchors(run: Path, when: str) -> dict[str, float]:
    """Return the metrics of the evaluation against random and perfect play."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return dict(summary["evaluations"]["anchors"][when])


@pytest.mark.parametrize("experiment", ["tiny/tic_tac_toe", "tiny/tic_tac_toe_league"])
def test_a_run_measures_both_opponents_in_both_seats(experiment: str) -> None:
    run = trained(experiment, *TINY)
    rows = read_metrics(run / "metrics.jsonl")
    assert sorted(rows) == [0, 1, 2]
    for when in ("before", "after"):
        found = anchors(run, when)
        for opponent in ("random", "minimax"):
            for place in (opponent, f"{opponent}/player_0", f"{opponent}/player_1"):
                fractions = [found[f"versus/{place}/{name}"] for name in ("won", "drawn", "lost")]
                assert sum(fractions) == pytest.approx(1.0)
                expected = pytest.approx(fractions[0] - fractions[2])
                assert found[f"versus/{place}/return"] == expected
    assert {"collapse/diverging", "collapse/illegal"} <= rows[2].keys()
    assert ("league/snapshots" in rows[2]) == (experiment == "tiny/tic_tac_toe_league")
    assert rows[2]["role/player/completion_tokens"] == 1


@pytest.mark.slow
def test_pure_self_play_collapses_and_the_league_prevents_it() -> None:
    """Compare the return against random play over both seats, after equally many games."""
    for seed in SEEDS:
        alone, league = (
            trained(name, f"seed={seed}")
            for name in ("tiny/tic_tac_toe", "tiny/tic_tac_toe_league")
        )
        before = anchors(alone, "before")["versus/random/return"]
        assert anchors(league, "before")["versus/random/return"] == before
        assert anchors(alone, "after")["versus/random/return"] < before - 0.1
        assert anchors(league, "after")["versus/random/return"] > before + 0.2
        rows = read_metrics(alone / "metrics.jsonl")
        assert any(row.get("collapse/diverging") for row in rows.values())
        games = [
            sum(r.get("episodes/count", 0) for r in read_metrics(run / "metrics.jsonl").values())
            for run in (alone, league)
        ]
        assert games[0] == games[1]
