"""Tests of populations: policies of roles, overrides and phases; and of settings of a run."""

from pathlib import Path
from typing import Any

import pytest
from transformers import MistralConfig

from selfplay.config.run_config import RunSettings
from selfplay.engines.scripted import ScriptedEngine
from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import ConfigError
from selfplay.models.policy_settings import PolicySettings
from selfplay.models.population import Population
from tests.helpers.populations import population as population_of

ROLES = ["proposer", "solver"]
POLICY = {"model": "m", "learn": True}
SETTINGS = PolicySettings(model="m")


def made(**fields: Any) -> Population:
    return population_of(fields.pop("role_names", ROLES), policy=POLICY, **fields)


def test_all_roles_share_one_policy() -> None:
    assert made().policies == {"base": SETTINGS}
    assert made().policy_of("solver") == "base"


def test_every_role_has_its_own_policy() -> None:
    found = made(sharing="separate").policies
    assert found == {"proposer": SETTINGS, "solver": SETTINGS}


def test_a_table_assigns_policies_to_roles() -> None:
    table = made(roles={"solver": "old"}, overrides={"old": {"learn": False, "model": "n"}})
    old = PolicySettings(model="n", learn=False)
    assert table.policies == {"base": SETTINGS, "old": old}
    assert table.policy_of("solver") == "old"
    without_base = made(roles={"proposer": "p", "solver": "s"})
    assert list(without_base.policies) == ["p", "s"], "base is not made if no role has it"
    back = made(sharing="separate", roles={"solver": "proposer"})
    assert list(back.policies) == ["proposer"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"roles": {"slover": "base"}}, "no role 'slover'; did you mean 'solver'"),
        ({"overrides": {"bass": {}}}, "no policy 'bass'; did you mean 'base'"),
        ({"overrides": {"base": {"lern": False}}}, "overrides.base.lern: .*did you mean 'learn'"),
        (
            {"overrides": {"base": {"lerner": {}}}},
            "overrides.base.lerner: .*did you mean 'learner'",
        ),
        (
            {"overrides": {"base": {"lr": 1e-3}}},
            r"overrides\.base\.lr: unknown key \(.* would be .*\.base\.learner\.lr\); did you",
        ),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(fields: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(**fields)
    with pytest.raises(ConfigError, match=r"policy.modle: .*did you mean 'model'"):
        population_of(ROLES, policy={"modle": "m"})


@pytest.mark.parametrize("name", ["../../outside", "a/b", "..", "a b", ""])
def test_the_name_of_a_policy_cannot_lead_out_of_a_checkpoint(name: str) -> None:
    with pytest.raises(ConfigError, match="a name has letters, digits, '-' and '_' only"):
        made(roles={"solver": name})
    with pytest.raises(ConfigError, match="a name has letters, digits, '-' and '_' only"):
        made(extra_policies=[name])


PHASES = [{"learn": ["proposer"], "steps": 2}, {"learn": ["proposer", "solver"], "steps": 1}]


def test_phases_choose_the_learning_policies_and_repeat() -> None:
    population = made(sharing="separate", phases=PHASES)
    assert [population.learns("proposer", step) for step in range(1, 8)] == [True] * 7
    solver = [population.learns("solver", step) for step in range(1, 8)]
    assert solver == [False, False, True, False, False, True, False]
    assert made().learns("base", 1) and made().learns("base", 1000)


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        ({"learn": ["solvr"], "steps": 1}, "1.learn: no policy 'solvr'; did you mean 'solver'"),
        ({"learn": ["old"], "steps": 1}, r"1.learn: policy 'old' is frozen \(learn: false\)"),
        ({"learn": ["solver"], "steps": 0}, "1: steps is at least 1, not 0"),
        ({"learn": [], "steps": 1}, "1: learn names no policy"),
        ({"learn": ["solver"], "step": 1}, "1.step: unknown key; did you mean 'steps'"),
        ({"learn": ["solver"]}, "1.steps: missing"),
        ({"learn": "solver", "steps": 1}, "1.learn: 'solver' does not fit"),
        ({"learn": ["proposer"], "steps": 1}, "policy 'solver' learns in none of them"),
    ],
)
def test_an_invalid_phase_is_refused(phase: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"population.phases.*{said}"):
        made(
            role_names=[*ROLES, "judge"],
            sharing="separate",
            roles={"judge": "old"},
            overrides={"old": {"learn": False}},
            phases=[{"learn": ["proposer"], "steps": 2}, phase],
        )


def test_at_least_one_policy_has_to_learn() -> None:
    frozen = {name: {"learn": False} for name in ROLES}
    with pytest.raises(ConfigError, match="no policy learns; set learn=true"):
        made(sharing="separate", overrides=frozen)


def test_a_policy_may_have_its_own_learner_settings() -> None:
    fast = {"solver": {"learner": {"lr": 1.0}}}
    population = made(sharing="separate", overrides=fast)
    assert population.policies == {"proposer": SETTINGS, "solver": SETTINGS}
    assert population.learner_of("solver") == {"lr": 1.0} and not population.learner_of("proposer")
    frozen = {"solver": {"learner": {"lr": 1.0}, "learn": False}}
    with pytest.raises(ConfigError, match=r"overrides.solver.learner: policy 'solver' is frozen"):
        made(sharing="separate", overrides=frozen)
    with pytest.raises(ConfigError, match=r"overrides.base.learner: 3 does not fit"):
        made(overrides={"base": {"learner": 3}})
    with pytest.raises(ConfigError, match=r"population.policy.learner: unknown key"):
        population_of(ROLES, policy={"learner": {}})


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": -1},
        {"checkpoint_every": 0},
        {"keep_checkpoints": 0},
        {"episodes_every": -1},
        {"threads": -1},
        {"max_failed_fraction": 1.5},
    ],
)
def test_invalid_settings_of_the_run_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RunSettings(**{"steps": 1, **wrong})


def test_how_often_episodes_are_kept() -> None:
    assert [RunSettings(steps=1, episodes_every=3).keeps_episodes(step) for step in (1, 3)] == [
        0,
        1,
    ]
    assert not RunSettings(steps=1, episodes_every=0).keeps_episodes(5)


def test_a_model_that_the_engine_refuses_is_found_by_its_config(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    for name, window in (("near", 8), ("far", None)):
        config = MistralConfig(vocab_size=32, sliding_window=window, **sizes)  # type: ignore[arg-type]
        config.save_pretrained(tmp_path / name)
    near, far = ({"model": str(tmp_path / name)} for name in ("near", "far"))
    refused = r"the transformers engine cannot serve MistralForCausalLM: it has sliding-window"
    with pytest.raises(ConfigError, match=rf"^policy\.model: {refused}"):
        population_of(["a"], policy=near).check_served(TransformersEngine())
    with pytest.raises(ConfigError, match=rf"^population\.opponents\.old\.model: {refused}"):
        made = population_of(["a"], policy=far, opponents={"old": near})
        made.check_served(TransformersEngine())
    population_of(["a"], policy=far).check_served(TransformersEngine())
    population_of(["a"], policy=near).check_served(ScriptedEngine({}))
    population_of(["a"], policy={"model": "no/config"}).check_served(TransformersEngine())
