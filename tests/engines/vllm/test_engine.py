"""Tests that the vLLM engine samples with the model's probabilities in every batch.

The tests run where vLLM is installed: scripts/setup vllm, then
.venv-vllm/bin/python -m pytest -m "vllm and not gpu" tests/engines/vllm
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CodeGenConfig, CodeGenForCausalLM, PreTrainedModel

from selfplay.engines.truncation import truncate
from selfplay.engines.vllm import core
from selfplay.engines.vllm.core import EngineCore
from selfplay.engines.vllm.engine import VLLMEngine
from selfplay.errors import ConfigError, PromptTooLong
from selfplay.types import Request, StopReason
from tests.helpers.engine_requests import END, answer
from tests.helpers.vllm_engine import asked, difference, emptied, finish, make, resident

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


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_the_models_own(
    engine: VLLMEngine, model: PreTrainedModel, temperature: float
) -> None:
    engine.serve("p", model, [END])
    requests = asked("p", temperature=temperature)
    assert difference(model, requests, answer(engine, requests)) < 1e-5


def test_greedy_tokens_are_those_of_generate_and_certain(
    engine: VLLMEngine, model: PreTrainedModel
) -> None:
    engine.serve("p", model, [END])
    requests = asked("p", 10, temperature=0.0)
    found = answer(engine, requests)
    generate: Any = model.generate
    for request in requests:
        ids = torch.tensor([request.prompt_ids])
        out = generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=request.max_tokens,
            eos_token_id=END,
            pad_token_id=0,
        )
        assert found[request.id].completion_ids == tuple(out[0, ids.shape[1] :].tolist())
        assert set(found[request.id].logprobs) == {0.0}


def test_a_sample_does_not_depend_on_the_batch(engine: VLLMEngine, model: PreTrainedModel) -> None:
    engine.serve("p", model, [END])
    requests = asked("p", 20)
    together = answer(engine, requests)
    for request in requests:
        (alone,) = answer(engine, [request]).values()
        assert alone.completion_ids == together[request.id].completion_ids
    assert len({done.completion_ids for done in together.values()}) > 10


def test_the_stop_reason_of_a_completion(engine: VLLMEngine, model: PreTrainedModel) -> None:
    ends = [END, *range(100, 120)]
    engine.serve("p", model, ends)
    requests = asked("p", 60, max_tokens=30)
    found = answer(engine, requests)
    for request in requests:
        done = found[request.id]
        stopped = done.completion_ids[-1] in ends
        assert not set(ends) & set(done.completion_ids[:-1])
        assert done.stop_reason is (StopReason.STOP if stopped else StopReason.LENGTH)
        assert stopped or len(done.completion_ids) == request.max_tokens
        assert len(done.logprobs) == len(done.completion_ids)
    assert {done.stop_reason for done in found.values()} == set(StopReason)


@pytest.mark.parametrize(
    "limits", [{"top_p": 0.6}, {"top_k": 4}, {"min_p": 0.3}, {"top_k": 6, "top_p": 0.7}]
)
def test_truncated_sampling_is_that_of_the_embedded_engine(
    engine: VLLMEngine, model: PreTrainedModel, limits: dict[str, Any]
) -> None:
    engine.serve("p", model, [END])
    requests = [replace(each, **limits) for each in asked("p", temperature=0.8)]
    found = answer(engine, requests)
    plain = answer(engine, [replace(each, id=each.id + 100) for each in asked("p")])
    assert any(plain[n + 100].completion_ids != done.completion_ids for n, done in found.items())
    for request in requests:
        done = found[request.id]
        ids = torch.tensor([[*request.prompt_ids, *done.completion_ids]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].double()
        nats = (logits / request.temperature).log_softmax(-1)
        kept = truncate(nats, logits, [request] * len(logits))
        wanted = kept.gather(1, torch.tensor(done.completion_ids)[:, None])[:, 0]
        torch.testing.assert_close(
            torch.tensor(done.logprobs).double(), wanted, atol=1e-3, rtol=1e-3
        )


def test_a_completion_ends_at_a_stop_string(engine: VLLMEngine, model: PreTrainedModel) -> None:
    engine.serve("p", model, [END])

    def decode(ids: Sequence[int]) -> str:
        return " ".join(map(str, ids)) + " "

    plain = asked("p", 30, max_tokens=30)
    free = answer(engine, plain)
    second = [done.completion_ids[2:3] for done in free.values() if len(done.completion_ids) > 6]
    stop = tuple(f" {' '.join(map(str, ids))} " for ids in second[:8])
    limits: dict[str, Any] = {"stop": stop, "decode": decode}
    requests = [replace(each, **limits) if each.id % 3 else each for each in plain]
    found, shortened = answer(engine, requests), 0
    for request in requests:
        whole, done = free[request.id].completion_ids, found[request.id]
        ends = [
            count
            for count in range(1, len(whole) + 1)
            if any(each in decode(whole[:count]) for each in request.stop)
        ]
        length = ends[0] if ends else len(whole)
        assert done.completion_ids == whole[:length] and len(done.logprobs) == length
        assert done.stop_reason is (StopReason.STOP if ends else free[request.id].stop_reason)
        shortened += length < len(whole)
    assert shortened > 3
    engine.publish("p", {}, 2)  # possible, because no request is in flight


def test_requests_that_cannot_be_served_are_refused(
    engine: VLLMEngine, model: PreTrainedModel
) -> None:
    def request(**settings: Any) -> Request:
        given = {"policy": "p", "prompt_ids": (5,), "max_tokens": 5, **settings}
        return Request(id=0, seed=0, **given)

    engine.serve("p", model, [END])
    with pytest.raises(ConfigError, match="serves no policy 'x'"):
        engine.add(request(policy="x"))
    with pytest.raises(PromptTooLong, match="exceeds the model's 256"):
        engine.add(request(prompt_ids=(5,) * 252))
    with pytest.raises(ConfigError, match="leaves no room for a prompt"):
        engine.add(request(max_tokens=256))
    with pytest.raises(ConfigError, match="empty prompt"):
        engine.add(request(prompt_ids=()))
    with pytest.raises(ConfigError, match=r"at 0\.01 and above, not at 0\.001"):
        engine.add(request(temperature=0.001))
    engine.add(request())
    with pytest.raises(RuntimeError, match="in flight"):
        engine.publish("p", {}, 1)
    with pytest.raises(RuntimeError, match="in flight"):
        engine.withdraw("p")
    assert len(finish(engine)) == 1
    engine.withdraw("p")
    assert engine.drain_metrics()["prompt_tokens"] == 1, "metrics remain after `withdraw`"


def test_arguments_that_the_engine_sets_are_no_options() -> None:
    for name in ("seed", "async_scheduling", "scheduling_policy"):
        with pytest.raises(ConfigError, match=rf"engine\.options\.{name}: the engine sets this"):
            VLLMEngine(options={name: True})
    with pytest.raises(ConfigError, match=r"max_num_seq: unknown to vLLM; .*'max_num_seqs'\?"):
        VLLMEngine(options={"max_num_seq": 4})


def test_auto_schedules_no_step_ahead_on_a_cpu(model: PreTrainedModel) -> None:
    engine = VLLMEngine(max_rows=8, cache=0.1, async_scheduling="auto")
    engine.serve("p", model, [END])
    try:
        (group,) = engine._groups.values()
        requests = asked("p", 5)
        assert difference(model, requests, answer(engine, requests)) < 1e-5
        assert group.host.engine.engine_core.engine_core.batch_queue is None
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("settings", "sizes", "line"),
    [
        ({"cache": 1e-6}, {}, "engine.cache"),
        ({"cache": 1e5}, {}, "engine.cache"),
        ({}, {"heads": 4}, "head_dim=16"),  # found only in the first forward pass
    ],
)
def test_a_model_that_vllm_cannot_serve_is_refused_in_one_line(
    settings: dict[str, Any], sizes: dict[str, int], line: str
) -> None:
    engine = VLLMEngine(**{"cache": 0.1, "max_rows": 8, **settings})
    with pytest.raises(ConfigError, match=f"policy 'p': vLLM cannot serve Qwen3.*{line}") as raised:
        engine.serve("p", make(**sizes), [END])
    assert "\n" not in str(raised.value)
    engine.close()


def test_a_second_engine_that_is_to_sleep_is_refused(
    engine: VLLMEngine, model: PreTrainedModel
) -> None:
    settings = replace(engine._settings, sleep=True)
    with pytest.raises(
        ConfigError, match=r"'p': .* a second vLLM engine, .* set engine\.sleep=false"
    ):
        EngineCore(model, settings, rank=None, where="policy 'p'")


def test_an_engine_that_is_to_sleep_is_refused_after_one_that_has_ended(
    engine: VLLMEngine, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's allocator keeps the memory of the first engine, and allows no second engine."""
    monkeypatch.setattr(core, "_LIVE", set())
    monkeypatch.setattr(core, "_SLEEPERS", ["policy 'q'"])
    settings = replace(engine._settings, sleep=True)
    with pytest.raises(
        ConfigError, match=r"^policy 'p': only one .* policy 'q' had one .* process"
    ):
        EngineCore(model, settings, rank=None, where="policy 'p'")


def test_the_error_of_an_unknown_architecture_lists_no_known_ones() -> None:
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 2, "rotary_dim": 8}
    config = CodeGenConfig(vocab_size=330, bos_token_id=None, eos_token_id=END, **sizes)
    strange: Any = CodeGenForCausalLM(config)
    engine = VLLMEngine(cache=0.1)
    with pytest.raises(ConfigError, match=r"\['CodeGenForCausalLM'\] are not .*; use") as raised:
        engine.serve("p", strange, [END])
    assert "Qwen" not in str(raised.value)


def test_prompts_that_do_not_fit_into_one_pass_are_read_in_several() -> None:
    model = make(0, layers=1)
    engine = VLLMEngine(max_rows=32, prefill_tokens=40, max_length=64, cache=0.1)
    engine.serve("p", model, [END])
    try:
        requests = asked("p", 60)
        assert difference(model, requests, answer(engine, requests)) < 1e-5
    finally:
        engine.close()


def test_random_streams_and_threads_are_left_alone() -> None:
    torch.manual_seed(5)
    expected, threads = torch.rand(3), torch.set_num_threads
    torch.manual_seed(5)
    engine = VLLMEngine(max_rows=8, cache=0.1)
    engine.serve("p", make(0, layers=1), [END])
    torch.manual_seed(5)
    try:
        answer(engine, asked("p", 3))
        assert torch.equal(torch.rand(3), expected)
        assert torch.set_num_threads is threads
    finally:
        engine.close()


def test_a_closed_engine_leaves_no_files() -> None:
    engine = VLLMEngine(max_rows=8, cache=0.1)
    engine.serve("p", make(0, layers=1), [END])
    tenant, tenants = engine._policies["p"]
    folders = [Path(tenant.folder.name), Path(tenants.host._folder.name)]
    assert all(folder.is_dir() for folder in folders)
    engine.close()
    assert not any(folder.exists() for folder in folders)
