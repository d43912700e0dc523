"""Tests of populations of real policies: refused configs, loaded models, learners."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from selfplay.config import compose
from selfplay.config.instantiate import build
from selfplay.config.run_config import RunSettings, set_up_process
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.models.policy import load_policy
from selfplay.models.policy_settings import Lora, PolicySettings
from selfplay.models.population import Population
from selfplay.rollout.policies import load_policies, make_learners
from selfplay.rollout.sampling_settings import SamplingSettings
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.remote_engine import RemoteEngine
from selfplay.runtime.weight_sync import receive, unpack
from tests.helpers.builders import same, save_tiny, weights
from tests.helpers.populations import population as population_of

ROLES = ["proposer", "solver"]
SIZES = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}
ADAPTERS = "population=adapters"
PHASES = "[{learn: [proposer], steps: 5}, {learn: [solver], steps: 20}]"
REINFORCE = PolicyLoss(ratio="none", clip="none", aggregate="token_mean")


@pytest.mark.parametrize(("precision", "dtype"), [("float32", "float32"), ("bfloat16", "bfloat16")])
def test_a_teacher_has_the_type_of_the_learners_passes(
    tmp_path: Path, precision: Any, dtype: str
) -> None:
    place = str(save_tiny(tmp_path / "model"))
    policy = load_policy("base", model=place, teacher=place, device="cpu")
    learners = make_learners(
        {"base": policy},
        settings={"base": LearnerSettings(precision=precision)},
        objective=PolicyLoss(kl=1.0, reference="teacher"),
        seed=0,
    )
    (teacher,) = learners["base"].references.models
    assert teacher is not policy.model and teacher.dtype is getattr(torch, dtype)


def read(*overrides: str) -> None:
    check(compose.load(["+experiment=tiny/smoke", *overrides]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"), **SIZES)


def made(folder: Path, **fields: Any) -> Population:
    policy = {"model": str(folder), "device": "cpu", **fields.pop("policy", {})}
    return population_of(ROLES, policy=policy, sharing="separate", **fields)


def loaded(population: Population, **settings: Any) -> Any:
    return load_policies(population, **{"seed": 0, **settings})


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_a_worker_has_weights_that_learn_in_the_type_in_which_they_are_sent(
    dtype: str, folder: Path
) -> None:
    """Workers on GPUs use bfloat16; in this test they are on the CPU."""
    population = made(folder, policy={"dtype": dtype})
    there = loaded(population, dtype="bfloat16")
    sent: list[Any] = []
    engine = RemoteEngine(send=sent.append, put=lambda packed: packed, dtype=torch.bfloat16)
    for name, policy in loaded(population).items():
        assert policy.model.dtype == torch.float32
        engine.serve(name, policy.model, [2])
        engine.publish(name, policy.model.state_dict(), 0)
    for each in sent:
        model = there[each.policy].model
        assert model.dtype == torch.bfloat16
        receive(each.policy, model, unpack(each.weights), each.checksums, 0)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"learn": False}, "auto"),
        ({"lora": Lora(rank=2)}, "auto"),
        ({"dtype": "float16", "learn": False}, "float16"),
    ],
)
def test_models_that_no_update_reaches_keep_the_type_of_their_files(
    settings: dict[str, Any], wanted: str
) -> None:
    policy = PolicySettings(**{"dtype": "auto", **settings})
    assert policy.placed_at(device="cpu", dtype="bfloat16").dtype == wanted


@pytest.mark.parametrize(
    "overrides",
    [
        [ADAPTERS],
        [ADAPTERS, "policy.lora.targets=[q_proj,v_proj]"],
        ["population=shared", "policy.lora={rank: 8}"],
        [ADAPTERS, "+population.overrides.solver.lora=null"],
        [ADAPTERS, "+population.overrides.solver.learner.lr=1e-5"],
        [ADAPTERS, "+population.overrides.solver.learn=false"],
        [
            ADAPTERS,
            "population.phases=[{learn: [proposer], steps: 5}, {learn: [solver], steps: 2}]",
        ],
    ],
)
def test_valid_settings_of_adapters_are_accepted(overrides: list[str]) -> None:
    read(*overrides)


def test_answers_that_leave_no_room_for_a_prompt_are_refused(folder: Path) -> None:
    """`folder` is a model of 1024 positions, the warm start's has 512; answers have up to 64."""
    read("sampling.default.max_tokens=511")
    with pytest.raises(
        ConfigError, match=r"^sampling\.default\.max_tokens: 512 .* in the 512 that"
    ):
        read("sampling.default.max_tokens=512")
    with pytest.raises(ConfigError, match=r"^sampling\.solver\.max_tokens: 1024 .*policy 'base'"):
        read(f"policy.model={folder}", "+sampling.solver.max_tokens=1024")
    with pytest.raises(ConfigError, match=r"max_tokens: 64 .* in the 64 that the model of policy"):
        read("warmstart.model.positions=64")

    script = {
        "_target_": "selfplay.engines.scripted.Scripted",
        "script": "arenas.games.tic_tac_toe.minimax",
    }
    population = made(folder, roles={"proposer": "script"}, opponents={"script": build(script)})
    limits = {"default": 10, "proposer": 900, "solver": 60}
    players: Any = SimpleNamespace(
        population=population,
        roles=ROLES,
        sampling={name: SamplingSettings(max_tokens=tokens) for name, tokens in limits.items()},
        max_length=61,
    )
    RolloutSetup.check_context_length(players)
    players.max_length = 60
    with pytest.raises(
        ConfigError, match=r"^sampling\.solver.*: 60 .* in engine\.max_length=60; lower this"
    ):
        RolloutSetup.check_context_length(players)


def test_answers_longer_than_a_loaded_model_allows_are_refused(folder: Path) -> None:
    """A warm start can set the context length by its demonstrations, after the config is read."""
    policy = load_policy("base", model=str(folder))
    players: Any = SimpleNamespace(
        population=SimpleNamespace(context_lengths={"base": None}, policy_of=lambda role: "base"),
        roles=ROLES,
        sampling=dict.fromkeys(("default", *ROLES), SamplingSettings(max_tokens=1024)),
        max_length=None,
    )
    RolloutSetup.check_context_length(players)
    words = r"^sampling\.default\.max_tokens: 1024 leaves no room .* in the 1024 that the model"
    with pytest.raises(ConfigError, match=words):
        RolloutSetup.check_context_length(players, {"base": policy})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy.lora.rank=0"], "policy.lora: rank is at least 1, not 0"),
        (["policy.lora.rank=many"], "policy.lora.rank: 'many' does not fit"),
        (["+policy.lora.ranks=4"], "policy.lora.ranks: unknown key; did you mean 'rank'"),
        (["policy.lora=16"], "policy.lora: 16 does not fit"),
        (["policy.lora.targets=[q]"], "policy.lora.targets: Qwen3ForCausalLM has no .* 'q'"),
        (["policy.lora.targets=[lm_head]"], "has no linear layer 'lm_head'"),
        (["+population.overrides.solver.lora.rank=0"], "overrides.solver.lora: rank is at least 1"),
        (["+population.overrides.solvr.lora=null"], "no policy 'solvr'; did you mean 'solver'"),
        (
            ["+population.overrides.solver.learner.lrr=1"],
            "overrides.solver.learner.lrr: unknown key",
        ),
        (
            ["+population.overrides.solver.learner.lr=fast"],
            "overrides.solver.learner.lr: 'fast' does",
        ),
        (
            ["+population.overrides.solver.learner.lr=-1"],
            "overrides.solver.learner.lr: -1 does not",
        ),
        (
            ["+population.overrides.solver.learner.seed=1"],
            "overrides.solver.learner.seed: unknown key",
        ),
        (["learner.attention=flex_attention"], "^learner.attention: flex_attention has no backw"),
        (
            ["+population.overrides.solver.learner.attention=flash_attention_2"],
            "overrides.solver.learner.attention: flash_attention_2 has no code for a CPU",
        ),
        (["learner.attention=flash"], "learner.attention: 'flash' does not fit"),
        (["policy.learn=false"], "no policy learns"),
        (["warmstart=none"], "policy.lora: an adapter needs a base; set policy.model"),
        (["warmstart=random_play_fine_tune"], "policy.model: missing, and the warm start fine-tun"),
        (["+warmstart.model.layer=1"], "warmstart.model.layer: unknown key; did you mean 'layers'"),
        (["population.phases=[{learn: [judge], steps: 1}]"], "phases.0.learn: no policy 'judge'"),
        (["population.phases=[{learn: [solver], steps: 1}]"], "'proposer' learns in none of them"),
        (
            [
                "+population.overrides.solver.learn=false",
                "population.phases=[{learn: [solver], steps: 1}]",
            ],
            "policy 'solver' is frozen",
        ),
    ],
)
def test_impossible_settings_are_refused_while_the_config_is_read(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(ADAPTERS, *overrides)
    assert "\n" not in str(caught.value)


def test_targets_are_looked_for_in_a_models_folder_without_its_weights(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"n_embd": 8, "n_layer": 1, "n_head": 1}
    GPT2LMHeadModel(GPT2Config(**sizes)).config.save_pretrained(tmp_path)
    read(ADAPTERS, f"policy.model={tmp_path}")
    with pytest.raises(ConfigError, match=r"GPT2LMHeadModel has no linear layer 'q_proj'; did"):
        read(ADAPTERS, f"policy.model={tmp_path}", "policy.lora.targets=[q_proj]")
    read(ADAPTERS, "policy.model=not/on-this-machine")  # only loading finds this


def test_without_peft_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfplay.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"policy.lora: .*pip install 'selfplay\[lora\]'"):
        read(ADAPTERS)
    read("population=separate")


def test_reading_a_config_draws_no_random_numbers() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    read(ADAPTERS)
    assert torch.equal(torch.rand(1), expected)


def test_adapters_share_a_base_and_whole_models_share_nothing(folder: Path) -> None:
    special = {"solver": {"lora": {"rank": 1}}}
    both = loaded(made(folder, policy={"lora": {"rank": 2}}, overrides=special))
    assert both["proposer"].base is both["solver"].base is not None
    assert both["proposer"].base.kept is None, "checkpoints do not store a base from a folder"
    assert same(
        weights(both["solver"].model),
        weights(loaded(made(folder, overrides=special))["solver"].model),
    ), "an adapter does not depend on other policies"
    apart = loaded(made(folder))
    assert apart["proposer"].base is apart["solver"].base is None
    assert next(apart["proposer"].model.parameters()) is not next(
        apart["solver"].model.parameters()
    )


def test_a_policy_learns_with_its_own_settings(folder: Path) -> None:
    players = RolloutSetup(
        compose.load(
            [
                *("+experiment=tiny/smoke", "population=separate", f"policy.model={folder}"),
                *("policy.device=cpu", "learner.lr=0.1", "learner.weight_decay=0.2"),
                "+population.overrides.solver.learner={lr: 0.5, betas: [0.5, 0.6]}",
            ]
        )
    )
    players.close()
    built = make_learners(
        loaded(players.population),
        settings=players.learner_settings,
        objective=REINFORCE,
        seed=0,
    )
    groups = {name: learner.optimizer.param_groups[0] for name, learner in built.items()}
    assert [groups[name]["lr"] for name in ROLES] == [0.1, 0.5]
    assert [groups[name]["weight_decay"] for name in ROLES] == [0.2, 0.2]
    assert groups["solver"]["betas"] == (0.5, 0.6)


def test_a_frozen_policy_has_no_learner(folder: Path) -> None:
    population = made(folder, overrides={"solver": {"learn": False}})
    policies = loaded(population)
    settings = dict.fromkeys(ROLES, LearnerSettings())
    built = make_learners(policies, settings=settings, objective=REINFORCE, seed=0)
    assert list(built) == ["proposer"] and not policies["solver"].learn


def test_a_deterministic_run_configures_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.setenv(name, "kept")
    monkeypatch.delenv(name)
    try:
        set_up_process(RunSettings(steps=1, deterministic=False), seed=0)
        assert name not in os.environ
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        set_up_process(RunSettings(steps=1), seed=0)
        assert name not in os.environ and not torch.are_deterministic_algorithms_enabled()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        set_up_process(RunSettings(steps=1), seed=0)
        assert os.environ[name] == ":4096:8" and torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
