"""Tests of self-play against theory, over seeds; they take minutes of CPU time."""

from pathlib import Path
from statistics import mean

import pytest

from selfplay.cli.main import main
from selfplay.run.record_reader import read_metrics
from selfplay.study.measures.exploitability import study

pytestmark = pytest.mark.slow
SEEDS = (0, 1, 2)
RETURN = "evaluation/game/team_return"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(experiment: str, seed: int, *overrides: str) -> Path:
    """Train, and return the run folder."""
    name = f"{Path(experiment).name}-{seed}-{len(list(Path().glob('runs/*')))}"
    arguments = ["train", f"+experiment={experiment}", f"seed={seed}", f"run.name={name}"]
    assert main([*arguments, "run.threads=1", *overrides]) == 0
    return Path("runs") / name


def last(run: Path) -> float:
    """Return the exploitability of the last iterate."""
    (found,) = study(run)
    assert found.exploitability is not None
    return found.exploitability


def test_self_play_with_an_ema_ends_near_the_equilibrium_of_kuhn() -> None:
    runs = [trained("tiny/kuhn", seed) for seed in SEEDS]
    before = [study(run, step=0)[0].exploitability for run in runs]
    assert before == pytest.approx([11 / 24] * len(SEEDS), abs=0.03)
    assert mean(last(run) for run in runs) <= 0.05


def test_self_play_without_the_ema_stays_exploitable() -> None:
    assert mean(last(trained("tiny/kuhn", seed, "objective.kl=0")) for seed in SEEDS) >= 0.1


def test_the_ema_lowers_the_exploitability_in_leduc_poker() -> None:
    with_ema = last(trained("tiny/leduc", 0, "run.steps=100"))
    assert with_ema <= 1.2
    assert last(trained("tiny/leduc", 0, "run.steps=100", "objective.kl=0")) >= with_ema + 0.5


def test_joint_credit_finds_the_code_and_separate_credit_does_not() -> None:
    def team(*overrides: str) -> list[float]:
        runs = [trained("tiny/signal", seed, *overrides) for seed in SEEDS]
        return [list(read_metrics(r / "metrics.jsonl").values())[-1][RETURN] for r in runs]

    joint = team()
    alone = team("credit=dr_grpo", "credit.group_by=agent")
    assert min(joint) >= 0.95 * 4.0
    assert max(alone) <= 0.84 * min(joint)
