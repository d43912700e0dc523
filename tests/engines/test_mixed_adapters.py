"""Tests of passes with rows of several adapters: each row is that of a pass with its adapter."""

import copy
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfplay.engines.serving_trial import mixing_problem
from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import DivergedError
from selfplay.models.lora import adapted, frozen_copy, merge
from selfplay.models.mixed_adapters import Assignment, MixedAdapters, adapter_layers, base_key
from selfplay.models.policy_settings import Lora
from selfplay.types import Completion, Request
from tests.helpers.architectures import made
from tests.helpers.builders import llama
from tests.helpers.engine_requests import plain

SHAPES: tuple[Lora | None, ...] = (
    Lora(rank=4, alpha=8),
    Lora(rank=1, alpha=3),
    None,
    Lora(rank=3, alpha=2, targets=["q_proj", "down_proj"]),
)
"""Adapters of several ranks and layers; None is the base."""


def base(seed: int = 0, **settings: int) -> PreTrainedModel:
    """Return a frozen model in float64, so sharp that other weights give other samples."""
    model = llama(seed, max_position_embeddings=80, **settings).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model.requires_grad_(False)


def with_adapter(model: PreTrainedModel, lora: Lora | None, seed: int) -> PreTrainedModel:
    """Return the model with a random adapter; return the model itself if `lora` is None."""
    if lora is None:
        return model
    made = adapted(model, lora, seed=seed, where="test").eval()
    source = torch.Generator().manual_seed(seed)
    for layer in adapter_layers(made).values():
        for part in (layer.lora_A["default"], layer.lora_B["default"]):
            values = torch.randn(part.weight.shape, generator=source)
            part.weight.data = values.to(model.dtype)
    return made


def several(model: PreTrainedModel) -> dict[str, PreTrainedModel]:
    """Return one policy for each entry of `SHAPES`, all over one base."""
    shapes = enumerate(SHAPES)
    return {f"p{seed}": with_adapter(model, lora, seed) for seed, lora in shapes}


KNOWN: dict[str, str] = {}
"""Results of the trials of models, which all engines of the tests share."""


def serving(models: Mapping[str, PreTrainedModel], **settings: int) -> TransformersEngine:
    """Return an engine in which only the length limit ends a completion."""
    engine = TransformersEngine(**settings)
    engine._known = KNOWN
    for name, model in models.items():
        engine.serve(name, model, ())
    return engine


def one_by_one(models: Mapping[str, PreTrainedModel], **settings: int) -> TransformersEngine:
    """Return an engine with a pass for each policy."""
    with mock.patch.object(TransformersEngine, "_base", lambda _, policy, *rest: policy):
        return serving(models, **settings)


def in_one_pass(models: Mapping[str, PreTrainedModel], **settings: int) -> TransformersEngine:
    engine = serving(models, **settings)
    assert len(engine._distinct()) == 1
    return engine


def asked(policies: Sequence[str], count: int, **settings: Any) -> list[Request]:
    """Return requests of all policies in turn, with three different prompts."""
    rng = Random(0)
    prompts = [tuple(rng.choices(range(20), k=rng.randint(1, 9))) for _ in range(3)]
    return [
        Request(
            id=number,
            policy=policies[number % len(policies)],
            prompt_ids=prompts[number // len(policies) % len(prompts)],
            seed=number // 2,
            **{
                "max_tokens": 1 + number % 7,
                "temperature": (0.0, 1.0, 0.8)[number % 3],
                **settings,
            },
        )
        for number in range(count)
    ]


def answered(engine: TransformersEngine, requests: Sequence[Request]) -> dict[int, Completion]:
    for request in requests:
        engine.add(request)
    found: dict[int, Completion] = {}
    while len(found) < len(requests):
        found |= {done.id: done for done in engine.step()}
    return found


def check(
    models: Mapping[str, PreTrainedModel],
    requests: Sequence[Request],
    found: Mapping[int, Completion],
) -> None:
    """Check that tokens and log-probabilities are those of each policy's own model alone."""
    for request in requests:
        ids, nats = plain(models[request.policy], request, ends=())
        assert found[request.id].completion_ids == ids
        assert found[request.id].logprobs == pytest.approx(nats, abs=2e-6)  # stored in float32


@pytest.mark.parametrize("owners", [[0, 0, 1, 2, 3, 3], [3, 1, 0, 2, 1, 0], [2, 2, 1, 1, 1, 2]])
@pytest.mark.parametrize("length", [1, 5])
def test_a_row_is_that_of_its_own_model_to_rounding(owners: list[int], length: int) -> None:
    models = list(several(base()).values())
    mixed = MixedAdapters(models[0])
    for number, model in enumerate(models):
        mixed.join(number, model)
    ids = torch.randint(0, 24, (len(owners), length), generator=torch.Generator().manual_seed(1))
    mixed.assign(owners)
    with torch.inference_mode():
        found = mixed.model(input_ids=ids).logits
        for row, owner in enumerate(owners):
            right = models[owner](input_ids=ids[[row]]).logits[0]
            torch.testing.assert_close(found[row], right, atol=1e-11, rtol=1e-11)
            other = models[(owner + 1) % 4](input_ids=ids[[row]]).logits[0]
            assert float((found[row] - other).abs().max()) > 1e-3


def test_the_base_is_in_memory_once_and_no_models_module_is_changed() -> None:
    models = several(base())
    modules = {name: list(map(type, model.modules())) for name, model in models.items()}
    engine = in_one_pass(models)
    answered(engine, asked(list(models), 8))
    mixed = engine._distinct()[0]._mixed
    assert mixed is not None
    own = {id(tensor) for model in models.values() for tensor in model.parameters()}
    assert {id(tensor) for tensor in mixed.model.parameters()} <= own
    assert modules == {name: list(map(type, model.modules())) for name, model in models.items()}


@pytest.mark.parametrize(("seed", "kind"), [(0, "sdpa"), (1, "eager")])
def test_conversations_of_several_adapters_are_those_of_each_alone(seed: int, kind: str) -> None:
    """Combine shared prompts, second turns, small caches, requests that join and new weights."""
    rng, model = Random(seed), base(seed, vocab_size=24)
    model.set_attn_implementation(kind)
    models = several(model)
    settings = {"max_rows": rng.choice([2, 50]), "stride": rng.choice([1, 4])}
    settings |= {"prefix_tokens": rng.choice([0, 30, 500]), "prefill_tokens": rng.choice([1, 100])}
    together, apart = in_one_pass(models, **settings), one_by_one(models, **settings)
    prompts: list[tuple[int, ...]] = [tuple(rng.choices(range(24), k=rng.randint(1, 9)))]
    seeds = 0
    for version in range(3):
        requests = {}
        found: dict[TransformersEngine, dict[int, Completion]] = {together: {}, apart: {}}
        for _ in range(2):
            for _ in range(10):
                seeds += 1
                requests[seeds] = Request(
                    id=seeds,
                    policy=rng.choice(list(models)),
                    prompt_ids=rng.choice(prompts),
                    seed=seeds,
                    max_tokens=rng.randint(1, 5),
                    temperature=rng.choice([0.0, 1.0, 1.0]),
                )
            for engine in found:
                for number in list(requests)[-10:]:
                    engine.add(requests[number])
                for _ in range(2):
                    found[engine] |= {done.id: done for done in engine.step()}
            for number, done in found[together].items():
                said = (*requests[number].prompt_ids, *done.completion_ids)
                prompts.append((*said, *rng.choices(range(24), k=rng.randint(1, 4))))
            prompts = [prompt for prompt in prompts if len(prompt) < 60][-40:]
        for engine, answers in found.items():
            while len(answers) < len(requests):
                answers |= {each.id: each for each in engine.step()}
        if version == 1:
            check(models, list(requests.values()), found[together])
        for number in requests:
            one, other = found[together][number], found[apart][number]
            assert one.completion_ids == other.completion_ids
            assert (
                one.version == other.version == (version if requests[number].policy == "p1" else 0)
            )
            assert one.logprobs == pytest.approx(other.logprobs, abs=2e-6)
        for layer in adapter_layers(models["p1"]).values():  # in place, like an optimizer
            layer.lora_B["default"].weight.data.mul_(0.5)
        for engine in found:
            engine.publish("p1", models["p1"].state_dict(), version + 1)


def test_the_policies_of_one_base_have_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    models = several(base())
    engine, alone = in_one_pass(models), one_by_one(models)
    rows: list[int] = []
    forward: Any = type(models["p0"]).forward

    def counting(self: PreTrainedModel, **given: Tensor) -> object:
        rows.append(len(given["input_ids"]))
        return forward(self, **given)

    monkeypatch.setattr(type(models["p0"]), "forward", counting)
    requests = [
        Request(id=number, policy=policy, prompt_ids=(5, 6, 7), seed=1, max_tokens=6)
        for number, policy in enumerate(models)
    ]
    answered(engine, requests)
    assert rows == [4] * 6
    rows.clear()
    answered(alone, requests)
    assert rows == [1] * 24


def test_the_counts_are_those_of_one_pass_per_adapter() -> None:
    models = several(base())
    requests = asked(list(models), 60)
    counts = []
    for engine in (in_one_pass(models), one_by_one(models)):
        engine.drain_metrics()
        answered(engine, requests)
        counts.append(engine.drain_metrics())
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "stored_tokens"):
        assert counts[0][name] == counts[1][name]


def test_the_newest_weights_in_place_are_used_and_others_keep_their_prefixes() -> None:
    models = several(base())
    engine = in_one_pass(models)
    requests = asked(list(models), 16, max_tokens=5)
    answered(engine, requests)
    engine.drain_metrics()
    with torch.no_grad():
        for layer in adapter_layers(models["p0"]).values():
            layer.lora_B["default"].weight.mul_(-1.0)
    kept = {name: len(each.prefixes) for name, each in engine._distinct()[0].policies.items()}
    check(models, requests, answered(engine, requests))
    after = {name: each.prefixes for name, each in engine._distinct()[0].policies.items()}
    assert all(kept.values())
    assert engine.drain_metrics()["cached_tokens"] > 0
    assert all(len(after[name]) >= kept[name] for name in ("p1", "p2", "p3"))


def test_weights_in_flight_change_the_versions_of_their_own_policy() -> None:
    models = several(base())
    engine = in_one_pass(models, stride=1)
    for number, policy in enumerate(models):
        engine.add(Request(id=number, policy=policy, prompt_ids=(5,), seed=1, max_tokens=6))
    engine.step()
    with pytest.raises(RuntimeError, match="'p1' got new weights with requests in flight"):
        engine.publish("p1", models["p1"].state_dict(), 3)
    engine.in_flight_updates = True
    engine.publish("p1", models["p1"].state_dict(), 3)
    found: dict[int, Completion] = {}
    while len(found) < 4:
        found |= {done.id: done for done in engine.step()}
    assert [found[number].versions for number in range(4)] == [(), ((0, 2), (3, 4)), (), ()]


def test_snapshots_of_an_adapter_are_added_and_withdrawn() -> None:
    models = several(base())
    engine = in_one_pass(models)
    before = answered(engine, asked(["p0"], 6))
    models["p0@1"] = frozen_copy(models["p0"])
    with torch.no_grad():
        for layer in adapter_layers(models["p0"]).values():
            layer.lora_B["default"].weight.mul_(2.0)
    engine.serve("p0@1", models["p0@1"], ())
    assert len(engine._distinct()) == 1
    requests = asked(["p0", "p0@1", "p3"], 12)
    check(models, requests, answered(engine, requests))
    assert answered(engine, asked(["p0@1"], 6)).keys() == before.keys()
    engine.add(Request(id=0, policy="p0@1", prompt_ids=(5,), seed=1, max_tokens=50))
    engine.step()
    with pytest.raises(RuntimeError, match=r"'p0@1' cannot be released .* in flight"):
        engine.withdraw("p0@1")
    engine.release("p3")  # p3 has no requests in flight
    while not engine.step():
        pass
    engine.withdraw("p0@1")
    assert not engine._distinct()[0].cache.slots, "the memory of the rows is freed"
    engine.withdraw("p3")
    requests = asked(["p0", "p1", "p2"], 12)
    check(models, requests, answered(engine, requests))
    for policy in ("p0", "p1", "p2"):
        engine.withdraw(policy)
    assert not engine._distinct()


def test_policies_that_differ_in_more_than_their_adapters_have_passes_of_their_own() -> None:
    model = base()
    one = with_adapter(model, SHAPES[0], 0)
    two, three = copy.deepcopy(one), with_adapter(model, SHAPES[1], 1)
    four = with_adapter(base(), SHAPES[0], 0)
    merged = with_adapter(base(), SHAPES[0], 0)
    merge(merged)
    assert base_key(one) == base_key(three) == base_key(model)
    assert base_key(one) not in (base_key(two), base_key(four)), "equal copies are not shared"
    assert base_key(merged) is None
    three.set_attn_implementation("eager")
    assert base_key(one) != base_key(three)
    engine = serving({"a": one, "b": four, "c": merged})
    engine.serve("d", with_adapter(model, SHAPES[1], 1), (7,))
    assert len(engine._distinct()) == 4, "other tokens end the completions of d"
    models = {"a": one, "b": four, "c": merged}
    requests = asked(list(models), 12)
    check(models, requests, answered(engine, requests))


@pytest.mark.parametrize(
    "change",
    [{"use_dora": True}, {"lora_bias": True}, {"modules_to_save": ["lm_head"]}, {"r": 2}],
)
def test_only_plain_adapters_share_a_pass(change: dict[str, Any]) -> None:
    from peft import LoraConfig

    model, others = base(), {"use_dora", "lora_bias", "modules_to_save"}
    other = copy.deepcopy(model, {id(each): each for each in model.parameters()})
    other.add_adapter(LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", **change))
    plain_one = with_adapter(model, SHAPES[0], 0)
    assert (base_key(other) == base_key(plain_one)) == (not others & change.keys())


def test_a_policy_whose_weights_are_broken_is_named() -> None:
    models = several(base())
    engine = in_one_pass(models)
    with torch.no_grad():
        next(iter(adapter_layers(models["p3"]).values())).lora_B["default"].weight.fill_(torch.nan)
    others = [request for request in asked(list(models), 16) if request.policy != "p3"]
    check(models, others, answered(engine, others))
    for request in asked(list(models), 8):
        engine.add(request)
    with pytest.raises(DivergedError, match="policy 'p3'"):
        engine.step()


@pytest.mark.parametrize("kind", ["gpt2", "falcon", "opt", "qwen3_moe"])
def test_other_architectures(kind: str) -> None:
    """A model whose layers do not keep rows apart is served with one pass for each adapter."""
    model = made(kind).requires_grad_(False)
    models = {f"p{seed}": with_adapter(model, Lora(rank=2), seed) for seed in range(2)}
    engine = serving(models)
    assert (len(engine._distinct()) == 1) == (kind != "opt")  # its layers get [R * N, inputs]
    requests = [each for each in asked(list(models), 9) if each.temperature]
    for request in requests:
        done = answered(engine, [request])[request.id]
        ids = torch.tensor([[*request.prompt_ids, *done.completion_ids]])
        with torch.no_grad():
            logits = models[request.policy](input_ids=ids).logits[
                0, len(request.prompt_ids) - 1 : -1
            ]
        nats = (logits / request.temperature).log_softmax(-1)
        right = nats.gather(1, torch.tensor(done.completion_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(done.logprobs), right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("way", ["release", "withdraw"])
def test_a_policy_answers_again_after_another_one_was_freed(way: str) -> None:
    """The prompt of the policy is cached, while the buffer that policies share is freed."""
    models = several(base())
    engine = in_one_pass(models)
    requests = [each for each in asked(list(models), 8) if each.policy == "p0"]
    answered(engine, requests)
    getattr(engine, way)("p1")
    check(models, requests, answered(engine, requests))


def test_the_trial_finds_rows_that_use_the_adapter_of_other_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = base()
    model, other = (with_adapter(whole, SHAPES[0], seed) for seed in range(2))
    assert mixing_problem(model) == "" and mixing_problem(whole) == ""
    right = Assignment.set
    monkeypatch.setattr(
        Assignment, "set", lambda self, owners, *rest: right(self, owners[-1:] + owners[:-1], *rest)
    )
    assert "its log-probabilities change by" in mixing_problem(model)
    engine = TransformersEngine()
    engine.serve("a", model, ())
    engine.serve("b", other, ())
    assert len(engine._distinct()) == 2


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_base_of_16_bits_is_rounded_as_by_peft(kind: torch.dtype) -> None:
    model: PreTrainedModel = llama()
    torch.nn.Module.to(model, kind).requires_grad_(False)
    models = [adapted(model, Lora(rank=4), seed=seed, where="").eval() for seed in range(2)]
    mixed = MixedAdapters(models[0])
    for number, each in enumerate(models):
        for layer in adapter_layers(each).values():
            torch.nn.init.normal_(layer.lora_B["default"].weight)
        mixed.join(number, each)
    ids = torch.tensor([[5, 6], [7, 8], [9, 3], [4, 2]])
    mixed.assign([0, 0, 1, 1])
    with torch.inference_mode():
        found = mixed.model(input_ids=ids).logits
        right = torch.cat(
            [models[0](input_ids=ids[:2]).logits, models[1](input_ids=ids[2:]).logits]
        )
    torch.testing.assert_close(found, right, atol=torch.finfo(kind).eps, rtol=torch.finfo(kind).eps)
