"""Tests that the embedded engine samples with the model's probabilities in every batch."""

import copy
import math
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from selfplay.engines.decoding import inverse
from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import ConfigError, DivergedError
from selfplay.types import Completion, Request, StopReason
from tests.helpers.engine_requests import END, answer, ask, engine, teacher


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_the_models_own(model: PreTrainedModel, temperature: float) -> None:
    requests = ask(60, temperature=temperature)
    found = answer(engine(model), requests)
    for request in requests:
        done = found[request.id]
        torch.testing.assert_close(
            torch.tensor(done.logprobs),
            teacher(model, request, done, temperature),
            atol=1e-4,
            rtol=1e-4,
        )


def test_greedy_tokens_are_those_of_generate(model: PreTrainedModel) -> None:
    requests = ask(20, temperature=0.0)
    found = answer(engine(model), requests)
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


@pytest.mark.parametrize(
    "settings", [{"max_rows": 1}, {"max_rows": 7, "stride": 1}, {"prefill_tokens": 1}]
)
def test_a_sample_does_not_depend_on_the_batch(
    model: PreTrainedModel, settings: dict[str, int]
) -> None:
    requests = ask(40)
    together = answer(engine(model), requests)
    apart = answer(engine(model, **settings), requests)
    for number, done in together.items():
        assert done.completion_ids == apart[number].completion_ids
        assert done.stop_reason == apart[number].stop_reason


def test_tokens_of_a_withdrawn_policy_are_counted(model: PreTrainedModel) -> None:
    requests = ask(10)
    stays, leaves = engine(model), engine(model)
    answer(stays, requests)
    answer(leaves, requests)
    leaves.withdraw("p")
    expected = stays.drain_metrics()
    assert leaves.drain_metrics() == expected and expected["completion_tokens"] > 0
    assert not leaves.drain_metrics()


def test_requests_join_while_others_are_in_flight(model: PreTrainedModel) -> None:
    requests = ask(30)
    alone = answer(engine(model), requests)
    busy = engine(model, stride=1)
    found: dict[int, Completion] = {}
    upcoming = list(requests)
    while len(found) < len(requests):
        for request in upcoming[:3]:
            busy.add(request)
        del upcoming[:3]
        found |= {done.id: done for done in busy.step()}
    assert {n: d.completion_ids for n, d in found.items()} == {
        n: d.completion_ids for n, d in alone.items()
    }


def test_first_tokens_are_as_frequent_as_the_model_says(model: PreTrainedModel) -> None:
    count = 4000
    prompt = (7, 8, 9)
    requests = [
        Request(id=n, policy="p", prompt_ids=prompt, seed=n, max_tokens=1) for n in range(count)
    ]
    seen = Counter(done.completion_ids[0] for done in answer(engine(model), requests).values())
    with torch.no_grad():
        chances = model(input_ids=torch.tensor([prompt])).logits[0, -1].softmax(-1)
    for token, chance in enumerate(chances.tolist()):
        spread = (chance * (1 - chance) / count) ** 0.5
        assert abs(seen[token] / count - chance) < 5 * spread + 1e-3


def test_the_stop_reason_of_a_completion(model: PreTrainedModel) -> None:
    requests = ask(200, max_tokens=30)
    found = answer(engine(model), requests)
    for request in requests:
        done = found[request.id]
        stopped = done.completion_ids[-1] == END
        assert END not in done.completion_ids[:-1]
        assert done.stop_reason is (StopReason.STOP if stopped else StopReason.LENGTH)
        assert stopped or len(done.completion_ids) == request.max_tokens


def test_one_prefill_per_distinct_prompt(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    forward: Any = type(model).forward

    def counting(self: PreTrainedModel, **given: torch.Tensor) -> object:
        if given["input_ids"].shape[1] > 1:
            rows.append(given["input_ids"].shape[0])
        return forward(self, **given)

    serves = engine(model)  # the engine first tries the model with its own prompts
    monkeypatch.setattr(type(model), "forward", counting)
    same = [
        Request(id=n, policy="p", prompt_ids=(5, 6, 7), seed=n, max_tokens=3) for n in range(50)
    ]
    answer(serves, same)
    assert rows == [1]


def test_requests_that_cannot_be_served_are_refused(model: PreTrainedModel) -> None:
    serving = engine(model)
    with pytest.raises(ConfigError, match="serves no policy 'q'"):
        serving.add(Request(id=0, policy="q", prompt_ids=(1,), seed=0, max_tokens=1))
    with pytest.raises(ConfigError, match="exceeds the model's 256"):
        serving.add(Request(id=0, policy="p", prompt_ids=(5,) * 250, seed=0, max_tokens=50))


def test_weights_do_not_change_under_requests_in_flight(model: PreTrainedModel) -> None:
    serving = engine(model, stride=1)
    serving.add(Request(id=0, policy="p", prompt_ids=(5,), seed=0, max_tokens=50))
    with pytest.raises(RuntimeError, match="in flight"):
        serving.publish("p", model.state_dict(), 1)
    fresh = engine(model)
    fresh.publish("p", model.state_dict(), 7)
    done = answer(fresh, [Request(id=0, policy="p", prompt_ids=(5,), seed=0, max_tokens=2)])
    assert done[0].version == 7


@pytest.mark.parametrize("setting", ["max_rows", "prefill_tokens", "stride"])
def test_a_setting_of_zero_is_refused(model: PreTrainedModel, setting: str) -> None:
    with pytest.raises(ConfigError, match=f"engine.{setting}: must be at least 1"):
        engine(model, **{setting: 0})


def test_rows_of_a_large_vocabulary_are_drawn_as_the_distribution_says() -> None:
    torch.manual_seed(0)
    chances = torch.randn(500, 1000).mul(3).softmax(-1)
    uniforms = torch.rand(500, dtype=torch.float64)
    whole = chances.double().cumsum(-1)
    expected = torch.searchsorted(whole, (uniforms * whole[:, -1])[:, None], right=True)[:, 0]
    assert torch.equal(inverse(chances, uniforms, torch.arange(500)), expected)
    alone = torch.zeros(3, 700)
    alone[:, 650] = 1.0
    ends = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    # A token of probability 0 is never drawn.
    assert inverse(alone[:1], ends, torch.tensor([0] * 3)).tolist() == [650] * 3


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_the_error_of_weights_that_are_not_finite_names_the_policy(
    model: PreTrainedModel, broken: float
) -> None:
    twin: Any = copy.deepcopy(model)
    serves = engine(twin)
    with torch.no_grad():
        twin.get_output_embeddings().weight[3] = broken
    with pytest.raises(DivergedError, match="policy 'p': its weights give probabilities that are"):
        answer(serves, ask(3))


def test_weights_that_are_not_finite_are_not_blamed_on_the_cache(model: PreTrainedModel) -> None:
    broken = copy.deepcopy(model)
    with torch.no_grad():
        next(iter(broken.parameters())).fill_(math.nan)
    with pytest.raises(
        DivergedError, match=r"^policy 'p': its weights give .* not finite"
    ) as caught:
        TransformersEngine(max_rows=4).serve("p", broken, [END])
    assert "rows of different lengths" not in str(caught.value)
