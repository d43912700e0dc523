"""Tests of config groups chosen for a run: their references get the run's values."""

from pathlib import Path
from typing import Any

import pytest

from selfplay.config import compose, trust
from selfplay.errors import ConfigError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    changes = ["sampling.default.max_tokens=7", "seed=5", "policy.lora={rank: 3}", "run.steps=9"]
    config = compose.load(["+experiment=tiny/kuhn", *changes])
    config["roles"]["player"]["template"] = "costs ${price}"
    (folder / "config.yaml").write_text(compose.to_yaml(config), encoding="utf-8")
    return folder


def changed(run: Path, *overrides: str) -> dict[str, Any]:
    return compose.load_changed(run, overrides)


def test_references_of_a_chosen_config_are_those_of_the_run(run: Path) -> None:
    assert changed(run, "shaping=overlong")["shaping"]["overlong"]["limit"] == 7
    assert changed(run, "objective=dr_grpo")["objective"]["length"] == 7
    assert changed(run, "algorithm=dr_grpo")["objective"]["length"] == 7
    assert changed(run, "curriculum=games")["curriculum"]["seed"] == 5
    shared = changed(run, "population=shared")["population"]["policy"]
    assert shared["lora"]["rank"] == 3


def test_an_evaluation_of_the_runs_arena_plays_it(run: Path) -> None:
    own = compose.load_changed(run, [])
    found = changed(run, "evaluations=kuhn", "evaluations.hands.every=3")
    assert found["evaluations"]["hands"]["arena"] == own["arena"]
    assert found["evaluations"]["hands"]["every"] == 3
    assert {**found, "evaluations": None} == {**own, "evaluations": None}
    assert found["roles"]["player"]["template"] == "costs ${price}"


def test_a_setting_of_an_evaluation_that_the_run_leaves_out_can_be_set(run: Path) -> None:
    """The setting is also accepted under a limit of trust."""
    with trust.limited(trust.TrustLimit()):
        found = changed(run, "evaluations.hands.same_draws=false", "evaluations.hands.samples=3")
        with pytest.raises(ConfigError, match=r"did you mean 'evaluations\.hands\.same_draws'"):
            changed(run, "evaluations.hands.same_draw=false")
    assert found["evaluations"]["hands"]["same_draws"] is False
    assert found["evaluations"]["hands"]["samples"] == 3


def test_a_reference_that_the_run_lacks_is_one_line(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"^warmstart\.\S+: it refers to a key that the run's"):
        changed(run, "warmstart=hasty_pipeline")
    with pytest.raises(ConfigError, match="no credit named 'rlo'; did you mean 'rloo'"):
        changed(run, "credit=rlo")
