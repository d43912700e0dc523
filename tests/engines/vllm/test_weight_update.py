"""Tests of weights in vLLM: every update arrives, is checked, and is used only by its policy."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from selfplay.engines import PromptTooLong
from selfplay.engines.vllm import served_policies
from selfplay.engines.vllm.adapter_arrival import AdapterArrival
from selfplay.engines.vllm.engine import VLLMEngine
from selfplay.engines.vllm.weight_check import WeightMismatch
from selfplay.errors import ConfigError, RunError
from selfplay.models.lora import adapted, frozen_copy
from selfplay.models.policy_settings import Lora
from selfplay.types import Completion, Request
from tests.helpers.engine_requests import END, answer
from tests.helpers.vllm_engine import (
    DIFFERENCE,
    VOCABULARY,
    asked,
    difference,
    emptied,
    finish,
    in_turn,
    make,
    resident,
    shake,
    sharpened,
)

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def shared() -> Iterator[VLLMEngine]:
    yield from resident()


@pytest.fixture
def engine(shared: VLLMEngine) -> Iterator[VLLMEngine]:
    yield from emptied(shared)


@pytest.fixture
def model() -> PreTrainedModel:
    return make(1)


def test_log_probabilities_are_the_models_own_after_every_update(
    engine: VLLMEngine, model: PreTrainedModel
) -> None:
    engine.serve("p", model, [END])
    engine.drain_metrics()
    for version in range(1, 5):
        before = copy.deepcopy(model)
        shake(model, version)
        engine.publish("p", model.state_dict(), version)
        requests = asked("p", seed=version)
        found = answer(engine, requests)
        assert difference(model, requests, found) < 1e-5
        assert difference(before, requests, found) > 10 * DIFFERENCE  # the old weights differ more
        assert {done.version for done in found.values()} == {version}
    counts = engine.drain_metrics()
    assert counts["loads"] == counts["loads_compared"] == 4
    assert 0 < counts["proof_difference"] < 1e-5


def test_completions_in_flight_continue_with_new_weights_if_allowed(
    engine: VLLMEngine, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "in_flight_updates", True)
    monkeypatch.setattr("selfplay.engines.vllm.engine.STRIDE", 4)
    engine.serve("p", model, [END])
    engine.publish("p", {}, 3)
    requests = [
        Request(id=n, policy="p", prompt_ids=(5 + n,), seed=n, max_tokens=20) for n in range(8)
    ]
    for request in requests:
        engine.add(request)
    found = engine.step()
    shake(model, 9)
    engine.publish("p", model.state_dict(), 4)
    found += finish(engine)
    assert len(found) == 8
    late = [done for done in found if done.versions]
    assert late
    for done in late:
        (first, before), (second, after) = done.versions
        assert (done.version, first, second) == (3, 3, 4)
        assert before == 4 and before + after == len(done.completion_ids)
    (request,) = asked("p", 1)
    (fresh,) = answer(engine, [request]).values()
    assert fresh.version == 4 and not fresh.versions
    assert difference(model, [request], {request.id: fresh}) < 1e-5


def test_a_lost_update_below_the_rounding_of_16_bits_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One number moves by one step of bfloat16, which no log-probability shows."""
    model: Any = make(5)
    model.to(torch.bfloat16)
    engine = VLLMEngine(max_rows=8, cache=0.1, options={"block_size": 32})
    request = Request(id=0, policy="p", prompt_ids=(5,), seed=0, max_tokens=5)
    try:
        engine.serve("p", model, [END])
        (group,) = engine._groups.values()
        assert "model.norm.weight" in group._arrival.compared
        load = served_policies.load_weights
        monkeypatch.setattr(served_policies, "load_weights", lambda *given, **settings: None)
        with torch.no_grad():
            norm = model.model.norm.weight
            norm[3] = norm[3].nextafter(torch.tensor(9.0, dtype=torch.bfloat16))
        engine.publish("p", model.state_dict(), 1)
        engine.add(request)
        with pytest.raises(
            RunError, match=r"did not reach vLLM: 1 of \d+ tensors .*model\.norm\.w"
        ):
            engine.step()
        monkeypatch.setattr(served_policies, "load_weights", load)
        assert len(finish(engine)) == 1
    finally:
        engine.close()


def test_an_engine_in_16_bits_samples_for_a_model_in_float32() -> None:
    model = make(5)
    engine = VLLMEngine(max_rows=32, cache=0.1, dtype="bfloat16", options={"block_size": 32})
    try:
        engine.serve("p", model, [END])
        (group,) = engine._groups.values()
        assert group.host.dtype is torch.bfloat16 and model.dtype is torch.float32
        assert "model.embed_tokens.weight" in group._arrival.compared
        for version in (1, 2):
            shake(model, version)
            engine.publish("p", model.state_dict(), version)
            requests = asked("p", seed=version)
            assert 1e-5 < difference(model, requests, answer(engine, requests)) < 0.03
    finally:
        engine.close()


def test_weights_of_a_learner_elsewhere_are_copied(
    engine: VLLMEngine, model: PreTrainedModel
) -> None:
    learner = copy.deepcopy(model)
    engine.serve("p", model, [END])
    shake(learner, 5)
    engine.publish("p", learner.state_dict(), 1)
    requests = asked("p")
    assert difference(learner, requests, answer(engine, requests)) < 1e-5


def test_an_update_that_is_lost_ends_the_run(
    engine: VLLMEngine, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve("p", model, [END])
    monkeypatch.setattr(served_policies, "load_weights", lambda *given, **settings: None)
    shake(model, 6, size=1e-5)
    engine.publish("p", model.state_dict(), 3)
    engine.add(Request(id=0, policy="p", prompt_ids=(5,), seed=0, max_tokens=5))
    with pytest.raises(RunError, match="policy 'p': version 3 did not reach vLLM"):
        engine.step()
    monkeypatch.undo()
    assert len(finish(engine)) == 1


def test_no_prefix_of_other_weights_or_of_another_policy_is_read(
    engine: VLLMEngine, model: PreTrainedModel
) -> None:
    engine.serve("p", model, [END])
    engine.serve("q", make(2), [END])
    long = tuple(5 + place % 200 for place in range(150))

    def cached(policy: str) -> float:
        engine.drain_metrics()
        request = Request(id=0, policy=policy, prompt_ids=long, seed=0, max_tokens=5)
        found = answer(engine, [request])
        assert difference(engine._policies[policy][0].model, [request], found) < 1e-5
        return engine.drain_metrics().get("cached_tokens", 0.0)

    assert cached("p") == 0
    assert cached("p") > 100
    assert cached("q") == 0
    assert cached("p") > 100  # its prefix is kept during the turn of q
    shake(model, 7)
    engine.publish("p", model.state_dict(), 1)
    assert cached("p") == 0
    engine.publish("p", {}, 1)  # the same weights again
    assert cached("p") == 0
    assert cached("p") > 100


def test_policies_of_one_shape_take_turns_and_none_waits_forever(engine: VLLMEngine) -> None:
    models = {name: make(seed) for seed, name in enumerate("pqr")}
    # The configs differ like those of a base model and its instruction-tuned version.
    models["q"].config.eos_token_id = 5
    models["q"].config.max_position_embeddings //= 2
    for name, each in models.items():
        engine.serve(name, each, [END])
    assert len(engine._groups) == 1
    limit = models["q"].config.max_position_embeddings
    long = Request(id=40, policy="q", prompt_ids=(7,) * limit, seed=0, max_tokens=1)
    with pytest.raises(PromptTooLong, match=f"exceeds the model's {limit}"):
        engine.add(long)
    found: dict[int, Completion] = {}
    upcoming = [
        Request(id=n, policy="ppqr"[n % 4], prompt_ids=(7, 8, 9), seed=n, max_tokens=1 + n % 9)
        for n in range(40)
    ]
    requests = list(upcoming)
    while len(found) < len(requests):
        for request in upcoming[:3]:
            engine.add(request)
        del upcoming[:3]
        found |= {done.id: done for done in engine.step()}
    for name, each in models.items():
        mine = [request for request in requests if request.policy == name]
        assert difference(each, mine, found) < 1e-5


@pytest.mark.parametrize(("dtype", "alpha"), [("float32", 16), ("bfloat16", 12)])
@pytest.mark.parametrize("part", ["lora_A", "lora_B"])
def test_a_lost_update_of_an_adapter_ends_the_run_however_small(
    part: str, dtype: Any, alpha: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One number moves by two steps of its type, which no log-probability shows.

    The scalings are 2 and 1.5, and the engine has room for a higher rank.
    """
    base = make(3).requires_grad_(False)
    settings: dict[str, Any] = {"cache": 0.1, "adapters": 2, "rank": 16, "dtype": dtype}
    engine = VLLMEngine(max_rows=8, options={"block_size": 32}, **settings)
    model = adapted(base, Lora(rank=8, alpha=alpha), seed=1, where="x").eval()
    other = adapted(base, Lora(rank=4, alpha=alpha), seed=2, where="x").eval()
    request = Request(id=0, policy="p", prompt_ids=(5,), seed=0, max_tokens=5)
    try:
        engine.serve("q", other, [END])
        engine.serve("p", model, [END])
        for version in (1, 2):
            shake(model, version)
            engine.publish("p", {}, version)
            assert len(answer(engine, [request])) == 1
        (group,) = engine._groups.values()
        counts = engine.drain_metrics()
        assert counts["loads"] == counts["loads_compared"] == 4
        kind = getattr(torch, dtype)
        moved = next(p for name, p in model.named_parameters() if part in name)
        with torch.no_grad():
            number, above = moved[1, 2].to(kind), torch.tensor(9.0, dtype=kind)
            moved[1, 2] = number.nextafter(above).nextafter(above).float()
        load = served_policies.load_adapter
        adapter = group.all[1].adapter
        monkeypatch.setattr(served_policies, "load_adapter", lambda *given: adapter)
        engine.publish("p", {}, 3)
        engine.add(request)
        with pytest.raises(RunError, match=f"version 3 did not reach vLLM: .* {part[-1]} have"):
            engine.step()
        monkeypatch.setattr(served_policies, "load_adapter", load)
        assert len(finish(engine)) == 1
    finally:
        engine.close()


def test_a_lost_first_update_of_an_adapter_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrices B of a new adapter are 0, and so are those of an adapter that is lost."""
    engine = VLLMEngine(max_rows=8, cache=0.1, options={"block_size": 32})
    model = adapted(make(3).requires_grad_(False), Lora(rank=8), seed=1, where="x").eval()
    try:
        engine.serve("p", model, [END])
        (group,) = engine._groups.values()
        adapter = group.all[0].adapter
        monkeypatch.setattr(served_policies, "load_adapter", lambda *given: adapter)
        with torch.no_grad():
            next(p for name, p in model.named_parameters() if "lora_B" in name)[1, 2] = 1e-6
        engine.publish("p", {}, 1)
        engine.add(Request(id=0, policy="p", prompt_ids=(5,), seed=0, max_tokens=5))
        with pytest.raises(RunError, match=r"version 1 did not reach vLLM: .* B have other"):
            engine.step()
    finally:
        engine.close()


def test_an_adapter_that_never_reaches_vllm_is_refused() -> None:
    """The matrices of such an adapter in vLLM are 0."""
    arrival, sent = AdapterArrival(), ((5, 25), (0, 0))
    with pytest.raises(WeightMismatch, match="no matrices"):
        arrival.check(((0, 0), (0, 0)), sent)
    other = AdapterArrival()
    other.check(((6, 36), (0, 0)), sent)  # vLLM stores the matrices in another form
    other.check(None, sent)
    assert arrival.compared is None and other.compared is False


def test_adapters_over_one_base_are_in_one_engine_together() -> None:
    base = make(3).requires_grad_(False)
    one, other = (adapted(base, Lora(rank=4), seed=seed, where="x").eval() for seed in (1, 2))
    shake(one, 1, 0.2)
    shake(other, 2, 0.2)
    engine = VLLMEngine(max_rows=32, cache=0.1, adapters=2, rank=8)
    try:
        engine.serve("one", one, [END])
        engine.serve("other", other, [END])
        engine.serve("one@1", frozen_copy(one), [END])  # a league's snapshot
        assert len(engine._groups) == 1
        models = {"one": one, "other": other, "one@1": frozen_copy(one)}
        for version in range(1, 4):
            shake(one, 10 + version, 0.1)
            engine.publish("one", one.state_dict(), version)
            requests = in_turn([*models], 24, max_tokens=8)
            found = answer(engine, requests)
            for name, each in models.items():
                mine = [request for request in requests if request.policy == name]
                assert difference(each, mine, found) < 1e-5
                assert found[mine[0].id].version == (version if name == "one" else 0)
        assert difference(other, [r for r in requests if r.policy == "one"], found) > 0.01
        engine.withdraw("one@1")
        with pytest.raises(ConfigError, match="serves no policy 'one@1'"):
            engine.add(Request(id=0, policy="one@1", prompt_ids=(5,), seed=0, max_tokens=1))
        large = adapted(base, Lora(rank=16), seed=4, where="x")
        with pytest.raises(
            ConfigError, match=r"rank 16, above the engine's 8; set engine\.rank=16"
        ):
            engine.serve("large", large, [END])
        # Requests of `other` are in flight while `one` gets new weights.
        for n in range(6):
            engine.add(Request(id=n, policy="other", prompt_ids=(9,), seed=n, max_tokens=40))
        found = {done.id: done for done in engine.step()}
        shake(one, 20, 0.1)
        engine.publish("one", one.state_dict(), 4)
        late = Request(id=9, policy="one", prompt_ids=(9,), seed=9, max_tokens=8)
        engine.add(late)
        found |= {done.id: done for done in finish(engine)}
        assert len(found) == 7
        assert difference(one, [late], found) < 1e-5
    finally:
        engine.close()


SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (Gemma2ForCausalLM, Gemma2Config(**SIZES, num_key_value_heads=1, head_dim=32)),
        (
            GPT2LMHeadModel,
            GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=64,
                n_layer=2,
                n_head=2,
                n_positions=128,
                bos_token_id=None,
                eos_token_id=None,
            ),
        ),
    ],
)
def test_other_models(kind: Any, config: Any) -> None:
    torch.manual_seed(0)
    model = sharpened(kind(config))
    engine = VLLMEngine(max_rows=16, cache=0.1)
    try:
        engine.serve("p", model, [END])
        for version in (1, 2):
            shake(model, version)
            engine.publish("p", model.state_dict(), version)
            requests = asked("p", 10)
            assert difference(model, requests, answer(engine, requests)) < 1e-4
    finally:
        engine.close()


def test_weights_that_vllm_does_not_know_are_refused_in_one_line(engine: VLLMEngine) -> None:
    strange = make(8)
    strange.register_parameter("strange", torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(ConfigError, match=r"vLLM refuses the weights: .*strange") as raised:
        engine.serve("p", strange, [END])
    assert "\n" not in str(raised.value)
    requests = asked("resident", 3)
    found = answer(engine, requests)
    assert difference(engine._policies["resident"][0].model, requests, found) < 1e-5


def test_an_adapter_that_vllm_does_not_know_is_refused_in_one_line() -> None:
    from peft import LoraConfig

    model: Any = make(3, layers=1).requires_grad_(False)
    model.add_adapter(LoraConfig(r=4, target_modules=["q_proj"], use_dora=True))
    engine = VLLMEngine(max_rows=8, cache=0.1)
    with pytest.raises(ConfigError, match=r"vLLM refuses the adapter: .*DoRA") as raised:
        engine.serve("p", model, [END])
    assert "\n" not in str(raised.value)
    engine.close()


def test_a_model_that_vllm_computes_differently_is_refused(
    monkeypatch: pytest.MonkeyPatch, engine: VLLMEngine
) -> None:
    monkeypatch.setattr(served_policies, "load_weights", lambda *given, **settings: None)
    with pytest.raises(ConfigError, match=r"vLLM cannot serve Qwen3ForCausalLM: .* did not"):
        engine.serve("p", make(8), [END])
    monkeypatch.undo()
    engine.publish("resident", {}, 0)
    assert len(answer(engine, asked("resident", 3))) == 3
