"""Tests that train the tiny experiments of the self-play curricula for one or two steps."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from arenas.questions.demonstrations import QuestionDemonstrations
from roles.advised import Advised
from roles.debater import Debater
from roles.player import Player
from roles.tagged import Tagged
from selfplay.cli.main import main
from selfplay.models.warmstart import WarmStart
from selfplay.role import Role

pytestmark = pytest.mark.usefixtures("without_charts")

SMALL = ["run.threads=1", "run.episodes_every=1", "run.name=r", "warmstart=none"]
HELD_OUT = [*SMALL, "evaluations.held_out.tasks.count=4"]
ASKED = [*HELD_OUT, "evaluations.asked.tasks.count=4"]
KINDS = ("solver", "proposer", "easier", "question_grade", "answer_grade", "generator")
MORE = ("critic", "refiner", "mentor", "advised_generator", "advised_refiner")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with a short warm start on all tasks of the experiments."""
    solver, refiner = (Debater(game=game, style="terse") for game in ("generator", "refiner"))
    roles: dict[str, Role] = {
        "solver": solver,
        "proposer": Role(template="{% if given %}Ease {{ given }}{% else %}Ask{% endif %}"),
        "judge": Tagged(game="grader", style="terse"),
        "generator": Advised(role=solver, style="terse"),
        "refiner": Advised(role=refiner, style="terse"),
        "verifier": Player(game="critic", style="terse"),
        "mentor": Player(game="mentor", style="terse"),
    }
    kinds = dict.fromkeys([*KINDS, *MORE], 1.0)
    shown = QuestionDemonstrations(
        kinds=kinds, largest=2, operations="+", right_share=0.7, harder=2
    )
    sizes = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64, "positions": 512}
    warm = WarmStart(
        demonstrations=shown, roles=roles, steps=60, batch=32, warmup_steps=5, lr=0.02, model=sizes
    )
    trained_model, tokenizer = warm.train()
    place = tmp_path_factory.mktemp("model")
    trained_model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def trained(
    experiment: str, model: Path, folder: Path, overrides: Sequence[str]
) -> tuple[list[Any], list[Any]]:
    """Train, and return the metrics and the recorded episodes of the run's steps."""
    where = ["policy=huggingface", f"policy.model={model}", f"run.folder={folder}"]
    assert main(["train", f"+experiment={experiment}", *where, *overrides]) == 0
    run = folder / "r"
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [p.read_text().splitlines() for p in sorted((run / "episodes").glob("*.jsonl"))]
    episodes = [json.loads(line)["episode"] for step in lines for line in step]
    assert all(step["episodes/failed"] == 0 for step in metrics[1:])
    return metrics[1:], episodes


def test_r_zero_takes_turns(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("nltk")
    phases = [f"population.phases={[{'learn': [r], 'steps': 1} for r in ('proposer', 'solver')]}"]
    sizes = ["curriculum.proposals=8", "curriculum.solver_batch=6", "curriculum.band=[0.0,1.0]"]
    plain = [text.replace("'", "") for text in phases]
    metrics, episodes = trained(
        "tiny/r_zero", model, tmp_path, [*SMALL, "evaluations=none", *plain, *sizes, "run.steps=2"]
    )
    learned = [(f["policy/proposer/learned"], f["policy/solver/learned"]) for f in metrics]
    assert learned == [(1.0, 0.0), (0.0, 1.0)]
    first, second = ([e for e in episodes if f"-{step}-" in e["task"]["id"]] for step in (1, 2))
    assert len(first) == 8 and all(e["task"]["payload"]["mode"] == "propose" for e in first)
    labelled = [e for e in episodes if e["task"]["payload"]["mode"] == "solve"]
    assert len(second) + len(labelled) == 6
    assert all("answer" in e["task"]["payload"] for e in labelled)
    asked = [t for e in first for t in e["turns"] if t["role"] == "proposer" and t["action"]]
    assert asked and all(t["reward"] <= t["info"]["unshaped_reward"] for t in asked)


def test_multi_agent_evolve_pays_three_roles_of_one_policy(model: Path, tmp_path: Path) -> None:
    sizes = ["curriculum.proposals=6", "curriculum.solver_batch=4", "run.steps=1"]
    sizes += ["evaluations=none"]
    metrics, episodes = trained("tiny/multi_agent_evolve", model, tmp_path, [*SMALL, *sizes])
    assert {t["policy"] for e in episodes for t in e["turns"]} == {"base"}
    roles = {t["role"] for e in episodes for t in e["turns"]}
    assert {"proposer", "judge"} <= roles and metrics[-1]["policy/base/tokens"] > 0
    assert all(0.0 <= f["role/proposer/reward"] <= 1.0 for f in metrics)


def test_ttrl_never_sees_an_answer(model: Path, tmp_path: Path) -> None:
    sizes = ["curriculum.tasks.count=8", "curriculum.batch=4", "run.steps=1"]
    metrics, episodes = trained("tiny/ttrl", model, tmp_path, [*ASKED, *sizes])
    assert episodes and all("answer" not in e["task"]["payload"] for e in episodes)
    assert "evaluation/asked/majority_accuracy" in metrics[-1]
    assert "arena/majority_accuracy" not in metrics[-1]


def test_ladder_asks_for_variants_of_what_failed(model: Path, tmp_path: Path) -> None:
    sizes = ["curriculum.roots.count=4", "curriculum.batch=4", "curriculum.proposals=4"]
    metrics, episodes = trained(
        "tiny/ladder", model, tmp_path, [*SMALL, "evaluations=none", *sizes, "run.steps=2"]
    )
    assert metrics[0]["curriculum/waiting"] > 0
    asked = [e["task"]["payload"] for e in episodes if e["task"]["payload"]["mode"] == "propose"]
    given = [int(word) for each in asked for word in each["given"]["question"].split()[::2]]
    assert given and all(20 <= number <= 30 for number in given)


def test_sirius_learns_from_its_library(model: Path, tmp_path: Path) -> None:
    sizes = ["curriculum.tasks.count=6", "curriculum.batch=12", "curriculum.tasks.largest=2"]
    sizes += ["curriculum.tasks.operations=+", "run.steps=1"]
    metrics, _ = trained("tiny/sirius", model, tmp_path, [*HELD_OUT, *sizes])
    last = metrics[-1]
    assert last["credit/kept"] > 0 and last["policy/base/samples"] >= 3 * last["credit/tasks"]
    assert "role/mentor/reward" in last and "arena/repaired" in last


def test_a_mixture_keeps_its_arenas_apart(model: Path, tmp_path: Path) -> None:
    sizes = [
        "shared.held_out.per_type=1",
        "services.executor.workers=1",
        "arena.parts.absolute_zero.solvers=2",
        "curriculum.parts.absolute_zero.seed_size=0",
        "curriculum.parts.absolute_zero.proposals=1",
        "curriculum.batch=8",
        "evaluations.kuhn.samples=2",
        "sampling.default.max_tokens=16",
        "run.steps=1",
    ]
    (metrics,), episodes = trained("tiny/mixture", model, tmp_path, [*SMALL, *sizes])
    assert metrics["curriculum/kuhn/drawn"] == 0.25
    assert sum(e["arena"] == "kuhn" for e in episodes) == 2 and len(episodes) == 8
    for name in ("arena/kuhn/illegal", "arena/absolute_zero/valid_proposal"):
        assert name in metrics
    assert "evaluation/kuhn/player_0_payoff" in metrics
    assert "evaluation/absolute_zero/accuracy" in metrics
