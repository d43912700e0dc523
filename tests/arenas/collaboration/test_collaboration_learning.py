"""Tests of training teams from scratch on a CPU: two write a program, three answer a question."""

import json
from pathlib import Path
from statistics import mean

import pytest

from selfplay.cli.main import main
from selfplay.run.directory import Run
from selfplay.run.report.run_report import read_metrics

pytestmark = pytest.mark.usefixtures("without_charts")

SEEDS = (0, 1, 2)
RETURN, ACCURACY = (f"evaluation/held_out/{name}" for name in ("team_return", "accuracy"))
SHORT = [
    "run.steps=1",
    "run.threads=1",
    "warmstart.steps=3",
    "warmstart.batch=4",
    "warmstart.model.hidden=16",
    "warmstart.model.layers=1",
    "evaluations.held_out.tasks.count=2",
    "evaluations.held_out.samples=1",
    "sampling.default.max_tokens=8",
    "curriculum.batch=2",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(experiment: str, name: str, *overrides: str) -> Path:
    """Train, and return the run folder."""
    arguments = ["train", f"+experiment={experiment}", f"run.name={name}", *overrides]
    assert main(arguments) == 0
    return Path("runs") / name


def last(run: Path) -> dict[str, float]:
    """Return the metrics of the last step."""
    return list(read_metrics(run / "metrics.jsonl").values())[-1]


def met(**runs: Path) -> list[str]:
    """Return the overrides that load each role's policy from the newest checkpoint of a run."""
    newest = {role: max((run / "checkpoints").glob("0*")) for role, run in runs.items()}
    return [
        f"+population.overrides.{role}.model={place}/policies/{role}"
        for role, place in newest.items()
    ] + ["run.steps=0"]


def test_a_step_of_two_turns_and_its_policies_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFPLAY_CACHE", str(Path.cwd() / "cache"))
    short = [*SHORT, "sampler.group_size=2", "curriculum.tasks.count=4"]
    run = trained(
        "tiny/collaboration",
        "a",
        "arena.turns=2",
        "run.episodes_every=1",
        "warmstart.demonstrations.again=0.5",
        *short,
    )
    (lines,) = (run / "episodes").iterdir()
    episodes = [json.loads(line)["episode"] for line in lines.read_text().splitlines()]
    assert len(episodes) == 4 and all(len(episode["turns"]) == 4 for episode in episodes)
    assert last(run)["arena/turns"] == 2.0
    both = trained("tiny/collaboration", "b", *short, *met(helper=run, main=run))
    settings = Run.open(both).config()["population"]["overrides"]
    assert Path(settings["main"]["model"]).is_relative_to(run.resolve())
    assert RETURN in last(both)


def test_a_step_of_the_pipeline_from_its_tree_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFPLAY_CACHE", str(Path.cwd() / "cache"))
    run = trained("tiny/malt", "a", "curriculum.tasks.count=4", *SHORT)
    assert last(run)["sampler/leaves"] == 27.0
    assert last(run)["episodes/count"] == 54.0
    assert last(run)["episodes/failed"] == 0.0


@pytest.mark.slow
def test_a_team_trained_together_beats_two_agents_trained_alone() -> None:
    together, alone = [], []
    for seed in SEEDS:

        def run(name: str, *overrides: str, seed: int = seed) -> Path:
            settings = [f"seed={seed}", "run.threads=1", *overrides]
            return trained("tiny/collaboration", f"{name}-{seed}", *settings)

        together.append(last(run("together"))[RETURN])
        helper = run("helper", "+population.overrides.main.learn=false")
        main_agent = run("main", "+population.overrides.helper.learn=false")
        both = run("met", *met(helper=helper, main=main_agent))
        alone.append(last(both)[RETURN])
    assert min(together) > max(alone)
    assert mean(together) >= 1.16 * mean(alone)


@pytest.mark.slow
def test_a_pipeline_improves_by_training_on_its_tree() -> None:
    gained = []
    for seed in SEEDS:
        run = trained("tiny/malt", f"malt-{seed}", f"seed={seed}", "run.threads=1")
        before, *_, after = read_metrics(run / "metrics.jsonl").values()
        gained.append(after[ACCURACY] - before[ACCURACY])
    assert min(gained) > 0
    assert mean(gained) >= 0.15
