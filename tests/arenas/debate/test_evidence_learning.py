"""Tests of the tiny debate by quotation: it runs, and self-play approaches the exact value."""

from pathlib import Path

import pytest

from arenas.debate.evidence_value import ORDERS, value
from selfplay.cli.main import main
from selfplay.run.record_reader import read_metrics
from selfplay.study.measures.exploitability import study

pytestmark = pytest.mark.usefixtures("without_charts")

BRIEF = ["run.steps=2", "evaluations.debates.tasks.repeats=1", "sampler.group_size=4"]
BRIEF += ["warmstart.steps=40", "warmstart.batch=24"]
JUDGED = ["arena.judge=true", "roles=evidence_debate_with_judge", "roles.judge.thinking=false"]
JUDGED += [f"roles.{role}.style=terse" for role in ("honest_debater", "deceptive_debater", "judge")]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ran(*overrides: str) -> list[dict[str, float]]:
    """Train; return the metrics, one entry from before the first step and one per step."""
    arguments = ["train", "+experiment=tiny/evidence_debate", "run.name=run", "run.threads=1"]
    assert main([*arguments, *overrides]) == 0
    return list(read_metrics(Path("runs/run/metrics.jsonl")).values())


def test_both_sides_learn() -> None:
    before, first, second = ran(*BRIEF)
    assert 0.0 <= before["evaluation/debates/honest_won"] <= 1.0
    for line in (first, second):
        assert line["policy/honest_debater/gradient_norm"] > 0
        assert line["policy/deceptive_debater/gradient_norm"] > 0
        assert line["episodes/failed"] == 0


def test_a_judge_learns_too() -> None:
    # A judge is asked only if both moves are quotes, so the warm start has to be longer.
    longer = ["warmstart.steps=150", "sampler.group_size=8", "evaluations=none"]
    brief = [each for each in BRIEF if not each.startswith("evaluations")]
    _, first, second = ran(*brief, *JUDGED, "arena.checked=0", *longer)
    for line in (first, second):
        assert line["policy/judge/gradient_norm"] > 0 and line["episodes/failed"] == 0


@pytest.mark.slow
def test_self_play_approaches_the_exact_value() -> None:
    pytest.importorskip("pyspiel")
    ran("evaluations=none")
    found = {each.step: each for each in study(Path("runs/run"), every=True)}
    exact = sum(value(facts=3, checked=0.5, order=order) for order in ORDERS) / len(ORDERS)
    before, after = found[0].exploitability, found[max(found)].exploitability
    assert before is not None and after is not None and before > 0.4 and after < 0.2
    assert (found[max(found)].values[0] + 1) / 2 == pytest.approx(exact, abs=0.06)
