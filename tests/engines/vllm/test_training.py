"""Tests of training with vLLM: every update arrives before the next token."""

import json
import signal
from pathlib import Path

import pytest

from tests.helpers.command_process import SMOKE, InjectedFault, one_line, run

pytestmark = pytest.mark.vllm


def test_a_run_with_vllm_learns_from_samples_of_its_own_weights(tmp_path: Path) -> None:
    asked = ("engine=vllm", "run.steps=2", "run.name=v")
    outcome = run("train", SMOKE, *asked, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    lines = (tmp_path / "runs" / "v" / "metrics.jsonl").read_text().splitlines()
    steps = [metrics for line in lines if (metrics := json.loads(line)).get("step", 0) > 0]
    assert len(steps) == 2
    for metrics in steps:
        assert metrics["policy/base/mismatch_kl"] < 1e-7
    for metrics in steps[1:]:  # step 1 samples with the weights loaded at the start
        assert metrics["engine/base/loads"] >= 1
        assert metrics["engine/base/proof_difference"] < 1e-5
    norms = {round(metrics["policy/base/gradient_norm"], 12) for metrics in steps}
    assert min(norms) > 0  # every update changed the weights


GAME = (
    *("services=none", "arena=tic_tac_toe", "arena.illegal=random_legal"),
    *("roles=tic_tac_toe", "roles.player.style=terse", "curriculum=games", "curriculum.batch=4"),
    *("evaluations=none", "warmstart=random_play", "warmstart.steps=5", "credit=dr_grpo"),
    *("credit.group_by=agent", "objective=magrpo", "sampler.group_size=2", "run.threads=1"),
    *("run.checkpoint_every=1", "run.steps=4", "sampling.default.max_tokens=2", "learner.lr=1e-2"),
    "objective.entropy=0.01",  # gives a gradient at every step, whatever the rewards are
    *("warmstart.model.hidden=64", "warmstart.model.heads=2"),  # vLLM refuses heads of size 16
    *("league=pfsp", "league.players.default.add.updates=1", "engine=vllm", "run.name=v"),
)


@pytest.mark.parametrize(("population", "killed"), [("shared", True), ("adapters", False)])
def test_a_league_plays_its_snapshots_with_vllm(
    tmp_path: Path, population: str, killed: bool
) -> None:
    """Separate weights take turns, adapters share an engine; a killed run is resumed."""
    injected = (
        InjectedFault(at="selfplay.train.Trainer.save", call=3, after=True) if killed else None
    )
    outcome = run("train", *GAME, f"population={population}", cwd=tmp_path, injected=injected)
    if killed:
        assert outcome.code == -signal.SIGKILL, outcome.err
        outcome = run("train", "resume=runs/v", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    lines = (tmp_path / "runs" / "v" / "metrics.jsonl").read_text().splitlines()
    steps = [metrics for line in lines if (metrics := json.loads(line)).get("step", 0) > 0]
    assert [metrics["step"] for metrics in steps] == [1, 2, 3, 4]
    found = [metrics[k] for metrics in steps for k in metrics if k.endswith("/mismatch_kl")]
    assert found and max(found) < 1e-7
    records = (tmp_path / "runs" / "v" / "episodes" / "000004.jsonl").read_text().splitlines()
    met = {name for line in records for name in json.loads(line)["episode"]["policy_map"].values()}
    assert any("@" in name for name in met), "no policy met a snapshot"


@pytest.mark.parametrize("setting", ["engine.sleep=true", "engine.max_length=64"])
def test_a_wrong_setting_is_refused_in_one_line_before_any_work(
    setting: str, tmp_path: Path
) -> None:
    outcome = run("train", SMOKE, "engine=vllm", setting, cwd=tmp_path, cache=tmp_path / "cache")
    assert outcome.code == 2
    assert setting.partition("=")[0] in one_line(outcome.err)
    assert not list(tmp_path.iterdir())
