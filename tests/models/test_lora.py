"""Tests of adapters: one base for all, only adapters learn, other libraries read their folders."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
)

from selfplay.errors import ConfigError, RunError
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.models import lora as adapters
from selfplay.models.lora import adapted_layers
from selfplay.models.policy import Bases, Policy, load_policy
from selfplay.models.policy_settings import Lora
from selfplay.models.tiny import build_model, build_tokenizer
from tests.helpers.builders import llama, same, sample
from tests.helpers.engine_requests import ask, serving

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
SAMPLES = [sample([1, 2, 3], [5, 6], 1.0), sample([4], [7, 8, 9], -0.5)]
SFT = PolicyLoss(ratio="none", clip="none", aggregate="token_mean", advantage="one")


def saved_model(place: Path, vocabulary: int | None = None, **sizes: int) -> Path:
    tokenizer = build_tokenizer(["def f("])
    build_model(vocabulary or len(tokenizer), seed=0, **sizes).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", '{"peft_type": "LORA"}', None])
def test_a_damaged_config_of_an_adapter_is_a_clear_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / adapters.CONFIG).write_text(text)
    with pytest.raises(ConfigError, match=r"policy: .* is not the config of an adapter"):
        adapters.name_copied_base(tmp_path, tmp_path, where="policy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden": 32, "layers": 2, "heads": 2, "intermediate": 48}
    return saved_model(tmp_path_factory.mktemp("base"), **sizes)


def loaded(folder: Path, *names: str, bases: Bases | None = None, **settings: Any) -> list[Policy]:
    """Return policies with adapters over one base."""
    shared: Bases = {} if bases is None else bases
    shape = settings.pop("lora", Lora(rank=4))
    return [
        load_policy(
            name, model=str(folder), device="cpu", lora=shape, bases=shared, seed=seed, **settings
        )
        for seed, name in enumerate(names)
    ]


def own(policy: Policy) -> list[torch.Tensor]:
    """Return copies of the adapter's tensors."""
    held = {id(tensor) for tensor in policy.base.model.parameters()} if policy.base else set()
    return [p.detach().clone() for p in policy.model.parameters() if id(p) not in held]


def frozen(policy: Policy) -> list[torch.Tensor]:
    """Return copies of the base's tensors."""
    assert policy.base is not None
    return [p.detach().clone() for p in policy.base.model.parameters()]


def size(*models: torch.nn.Module) -> int:
    """Return the bytes of all parameters and buffers, counted once per storage."""

    def tensors() -> Iterator[torch.Tensor]:
        for model in models:
            yield from model.parameters()
            yield from model.buffers()

    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors()}
    return sum(storages.values())


def logprobs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits.log_softmax(-1)


def trained(policy: Policy, objective: PolicyLoss = SFT, **settings: Any) -> Learner:
    """Return a learner after one step, at a rate that changes the adapter visibly."""
    rest = {"lr": 1e-2, "weight_decay": 0.1, **settings}
    learner = Learner(
        policy.model,
        objective=objective,
        reference=policy.reference,
        settings=LearnerSettings(**rest),
    )
    learner.update(SAMPLES, step=1)
    return learner


def test_eight_roles_take_hardly_more_memory_than_one(tmp_path: Path) -> None:
    # Rank and width are as 16 and 1024, and the vocabulary has a quarter of the weights.
    saved_model(tmp_path, 4096, hidden=256, layers=4, heads=4, intermediate=768)
    eight = loaded(tmp_path, *(f"role {n}" for n in range(8)))
    one = size(eight[0].model)
    assert one < size(*(policy.model for policy in eight)) < 1.3 * one
    apart = [load_policy(str(n), model=str(tmp_path), device="cpu").model for n in range(2)]
    assert size(*apart) == 2 * size(apart[0]), "two separate models are counted twice"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_new_adapter_changes_no_log_probability_by_a_bit(folder: Path, dtype: str) -> None:
    first, second = loaded(folder, "first", "second", dtype=dtype)
    assert first.base is not None and first.base is second.base
    for policy in (first, second):
        assert torch.equal(logprobs(policy.model), logprobs(first.base.model))
        assert {tensor.dtype for tensor in own(policy)} == {torch.float32}
    assert not same(own(first), own(second)), "each adapter has its own A"
    assert same(own(first), own(*loaded(folder, "again", dtype=dtype))), "the seed determines A"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_on_one_adapter_moves_no_other_and_no_base_weight(folder: Path, dtype: str) -> None:
    first, second, third = loaded(folder, "first", "second", "third", dtype=dtype)
    before = [own(policy) for policy in (first, second, third)]
    base = frozen(first)
    for _ in range(2):  # B is 0 at first, so A has no gradient
        trained(second)
    assert same(frozen(first), base)
    assert same(own(first), before[0]) and same(own(third), before[2])
    moved = [not torch.equal(a, b) for a, b in zip(own(second), before[1], strict=True)]
    assert all(moved), "every A and B learns"
    assert not torch.equal(logprobs(second.model), logprobs(first.model))


def test_policies_over_one_base_have_their_own_chat_settings(folder: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(folder, tmp_path / "base"))
    chat = place / "chat_template.jinja"
    chat.write_text("{{ greeting | default('Hi') }}" + chat.read_text())
    bases: Bases = {}
    made = [
        loaded(place, name, bases=bases, chat_template_kwargs=settings)[0]
        for name, settings in (("a", {"greeting": "Hello"}), ("b", None), ("c", None))
    ]
    assert len(bases) == 1 and made[0].base is made[1].base is made[2].base
    messages = [{"role": "user", "content": "x"}]
    texts = [p.renderer.tokenizer.decode(p.renderer.start(messages))[:5] for p in made]
    assert texts == ["Hello", "Hi<|i", "Hi<|i"]


def test_the_engine_samples_with_each_policys_own_adapter(folder: Path) -> None:
    policies = loaded(folder, "first", "second")
    trained(policies[1], lr=0.5)
    engine = serving({p.name: p.model for p in policies}, {p.name: [] for p in policies})
    requests = [replace(one, temperature=1.0, max_tokens=6) for one in ask(4)]
    for number, policy in enumerate(policies):
        engine.publish(policy.name, policy.model.state_dict(), 1)
        for one in requests:
            engine.add(replace(one, id=10 * number + one.id, policy=policy.name))
    found: dict[int, Any] = {}
    while len(found) < 8:
        found |= {completion.id: completion for completion in engine.step()}
    for number, policy in enumerate(policies):
        for one in requests:
            done = found[10 * number + one.id]
            ids = torch.tensor([[*one.prompt_ids, *done.completion_ids]])
            with torch.no_grad():
                scores = policy.model(input_ids=ids).logits[0, len(one.prompt_ids) - 1 : -1]
            chosen = torch.tensor(done.completion_ids)[:, None]
            expected = scores.log_softmax(-1).gather(1, chosen)[:, 0]
            assert torch.allclose(torch.tensor(done.logprobs), expected, atol=1e-4)


def test_a_frozen_policy_with_an_adapter_is_the_base(folder: Path) -> None:
    (policy,) = loaded(folder, "old", learn=False)
    assert not any(parameter.requires_grad for parameter in policy.model.parameters())


def test_the_fixed_reference_is_the_base_and_costs_nothing(folder: Path) -> None:
    (policy,) = loaded(folder, "first")
    before, held = logprobs(policy.model), size(policy.model)
    policy.freeze_reference()
    assert policy.reference is not None
    trained(policy, replace(SFT, kl=0.1))
    assert size(policy.model, policy.reference) == held
    assert torch.equal(logprobs(policy.reference), before)


def test_the_ema_is_a_second_adapter_that_follows(folder: Path) -> None:
    (policy,) = loaded(folder, "first")
    base, start = frozen(policy), own(policy)
    adapter = sum(tensor.nbytes for tensor in start)
    held = size(policy.model)
    policy.freeze_reference(moves=True)
    ema = policy.reference
    assert ema is not None
    assert held < size(policy.model, ema) <= held + 2 * adapter
    assert torch.equal(logprobs(ema), logprobs(policy.model))
    learner = trained(policy, replace(SFT, kl=0.1, reference="ema", ema_rate=0.25))
    followed = own(replace(policy, model=ema))
    for mean, began, now in zip(followed, start, own(policy), strict=True):
        torch.testing.assert_close(mean, began + 0.25 * (now - began))
    assert same(frozen(policy), base)

    state = learner.state_dict()
    assert sum(tensor.nbytes for tensor in state["ema"].values()) == adapter
    (again,) = loaded(folder, "first")
    again.freeze_reference(moves=True)
    twin = Learner(again.model, objective=learner.objective, reference=again.reference)
    twin.load_state_dict(state)
    assert again.reference is not None
    assert same(own(replace(again, model=again.reference)), followed)


def test_a_saved_adapter_loads_into_transformers_and_back(folder: Path, tmp_path: Path) -> None:
    (policy,) = loaded(folder, "first")
    trained(policy)
    policy.save(tmp_path)
    content = json.loads((tmp_path / "adapter_config.json").read_text())
    assert content["base_model_name_or_path"] == str(folder)
    assert not (tmp_path / "model.safetensors").exists(), "the base is not copied into the folder"
    assert torch.equal(
        logprobs(AutoModelForCausalLM.from_pretrained(tmp_path)), logprobs(policy.model)
    )
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template
    (again,) = loaded(folder, "again")
    held = [p for p in again.model.parameters() if p.requires_grad]
    again.load_weights(tmp_path)
    assert same(own(again), own(policy)) and same(held, own(policy)), "loaded in place"


def test_an_adapter_folder_loads_as_a_whole_model(folder: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(folder, tmp_path / "a/bases/kept"))
    (policy,) = loaded(base, "first")
    trained(policy)
    policy.save(tmp_path / "a/policies/first")
    place = Path(shutil.move(tmp_path / "a", tmp_path / "b")) / "policies/first"
    whole = load_policy("next", model=str(place), device="cpu")
    torch.testing.assert_close(logprobs(whole.model), logprobs(policy.model))
    assert all(parameter.requires_grad for parameter in whole.model.parameters())
    assert not any("lora" in name for name, _ in whole.model.named_parameters())
    (further,) = loaded(place, "further")
    assert torch.equal(logprobs(further.model), logprobs(whole.model))
    shutil.rmtree(tmp_path / "b/bases")
    with pytest.raises(ConfigError, match=r"policy 'next': no folder .*bases/kept"):
        load_policy("next", model=str(place))


def test_an_adapter_that_is_its_own_base_is_refused(tmp_path: Path) -> None:
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path)}
    (tmp_path / adapters.CONFIG).write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"policy 'first': .* names a base that is an adapter"):
        load_policy("first", model=str(tmp_path))


def test_weights_of_another_adapter_change_nothing(folder: Path, tmp_path: Path) -> None:
    (policy,) = loaded(folder, "first")
    before = own(policy)
    other = [Lora(rank=8), Lora(rank=4, targets=["q_proj"])]
    for number, shape in enumerate(other):
        place = tmp_path / str(number)
        loaded(folder, "other", lora=shape)[0].save(place)
        with pytest.raises(RunError, match=r"another shape: .* resume with the policy.lora") as e:
            policy.load_weights(place)
        assert "\n" not in str(e.value)
    with pytest.raises(RunError, match="no adapter in"):
        policy.load_weights(folder)
    assert same(own(policy), before)


def test_targets_are_linear_layers_of_the_model() -> None:
    assert adapted_layers(Lora(), llama(), where="") == [
        *("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    ]
    sizes: dict[str, Any] = {"n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 8}
    gpt2: Any = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    assert adapted_layers(Lora(), gpt2, where="") == ["c_attn", "c_fc", "c_proj"]
    for wrong in ("q_porj", "lm_head", "input_layernorm"):
        with pytest.raises(ConfigError, match=f"x.targets: Llama.* no linear layer '{wrong}'; "):
            adapted_layers(Lora(targets=["v_proj", wrong]), llama(), where="x")
    adapted = adapters.adapted(gpt2, Lora(rank=2), seed=0, where="")
    ids = torch.tensor([[1, 2]])
    assert torch.equal(adapted(input_ids=ids).logits, gpt2(input_ids=ids).logits)


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"alpha": 0}, {"targets": []}])
def test_invalid_shapes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Lora(**wrong)


def test_without_peft_the_package_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("selfplay.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"policy 'a': lora: .*pip install 'selfplay\[lora\]'"):
        loaded(folder, "a")
    assert load_policy("b", model=str(folder), device="cpu").base is None


def test_layers_that_peft_refuses_give_an_error_of_one_line() -> None:
    config = MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4)
    model = MambaForCausalLM(config).requires_grad_(False)
    with pytest.raises(
        ConfigError, match=r"^policy\.lora\.targets: the package peft .*out_proj"
    ) as e:
        adapters.adapted(model, Lora(rank=2), seed=0, where="policy.lora")
    assert "\n" not in str(e.value)
    named = Lora(rank=2, targets=["x_proj"])
    assert adapters.adapted(model, named, seed=0, where="policy.lora") is not model
