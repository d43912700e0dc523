"""Tests of the tiny debates: they run, they learn, and training makes the discussion useful."""

from pathlib import Path
from statistics import mean

import pytest

from selfplay.cli.main import main
from selfplay.run.record_reader import read_metrics

pytestmark = pytest.mark.usefixtures("without_charts")

SEEDS = (0, 1, 2)
HELD_OUT = "evaluation/held_out/"
BRIEF = ["run.steps=2", "evaluations.held_out.tasks.count=4", "curriculum.tasks.count=8"]
BRIEF += ["curriculum.batch=2", "warmstart.steps=40", "warmstart.batch=8", "objective.entropy=0.01"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ran(experiment: str, *overrides: str) -> list[dict[str, float]]:
    """Train; return the metrics, one entry from before the first step and one per step."""
    name = f"run-{len(list(Path().glob('runs/*')))}"
    arguments = ["train", f"+experiment={experiment}", f"run.name={name}", "run.threads=1"]
    assert main([*arguments, *overrides]) == 0
    return list(read_metrics(Path("runs") / name / "metrics.jsonl").values())


def test_a_brief_debate_measures_the_discussion() -> None:
    before, first, second = ran("tiny/debate", *BRIEF, "arena.incentives.corrected_alone=0.5")
    names = ("first_majority", "last_accuracy", "corrections", "wrong_persuasions", "conformity")
    for line in (before, second):
        assert all(0.0 <= line[HELD_OUT + name] <= 1.0 for name in names[:2])
    assert all(line["policy/base/gradient_norm"] > 0 for line in (first, second))


def test_a_judge_of_a_debate_learns_too() -> None:
    judged = ["arena.aggregate=judge", "roles=debate_with_judge", "population=separate"]
    judged += ["roles.debater.style=terse", "roles.judge.style=terse", "arena.rounds=1"]
    _, first, second = ran("tiny/debate", *BRIEF, *judged)
    for line in (first, second):
        assert line["policy/judge/gradient_norm"] > 0 and line["policy/debater/gradient_norm"] > 0
        assert "role/judge/reward" in line and line["episodes/failed"] == 0


def test_sides_and_judge_of_a_zero_sum_debate_learn() -> None:
    _, first, second = ran("tiny/judged_debate", *BRIEF)
    for line in (first, second):
        assert line["policy/judge/gradient_norm"] > 0 and line["policy/debater/gradient_norm"] > 0
        assert line["role/debater/reward"] == 0.0, "the debate is zero-sum"


@pytest.mark.slow
def test_training_makes_the_last_round_better_than_the_first_majority() -> None:
    def gains(line: dict[str, float]) -> list[float]:
        """Return the gains over the first majority of the last round's mean and of its majority."""
        last = [line[HELD_OUT + name] for name in ("last_accuracy", "last_majority")]
        return [accuracy - line[HELD_OUT + "first_majority"] for accuracy in last]

    runs = [ran("tiny/debate", f"seed={seed}") for seed in SEEDS]
    before, after = ([gains(lines[place]) for lines in runs] for place in (0, -1))
    # 400 questions: the standard error of such a difference is about 2.5 points.
    assert all(mean(column) <= 0.03 for column in zip(*before, strict=True))
    assert all(gain >= 0.05 for row in after for gain in row)
    for lines in runs:
        assert lines[-1][HELD_OUT + "corrections"] > lines[0][HELD_OUT + "corrections"]


@pytest.mark.slow
def test_a_judge_that_decides_twice_learns_without_a_position_bias() -> None:
    lines = ran("tiny/judged_debate")
    before, after = lines[0], lines[-1]
    # 400 questions with two verdicts each.
    assert after[HELD_OUT + "judge_accuracy"] >= before[HELD_OUT + "judge_accuracy"] + 0.1
    assert abs(after[HELD_OUT + "side_a_won"] - 0.5) <= 0.05
