"""Tests that requests with equal histories share a row of the pass, but sample separately."""

from random import Random
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import ConfigError
from selfplay.types import Completion, Request
from tests.helpers.builders import llama
from tests.helpers.engine_requests import answer, distinct, engine, plain, serving


def ask(prompt: tuple[int, ...], count: int, first: int = 0, **settings: Any) -> list[Request]:
    settings = {"max_tokens": 6, **settings}
    return [
        Request(id=number, policy="p", prompt_ids=prompt, seed=number, **settings)
        for number in range(first, first + count)
    ]


def endless(model: PreTrainedModel, **settings: int) -> TransformersEngine:
    """Return an engine in which only the length limit ends a completion, without metrics so far."""
    made = serving({"p": model}, {"p": []}, **settings)
    made.drain_metrics()
    return made


def check(model: PreTrainedModel, requests: list[Request], found: dict[int, Completion]) -> None:
    """Check that tokens and log-probabilities are those of a plain loop over each request alone."""
    for request in requests:
        ids, nats = plain(model, request, ends=())
        assert found[request.id].completion_ids == ids
        assert found[request.id].logprobs == pytest.approx(nats, abs=1e-5)


def test_siblings_are_one_row_until_they_differ(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    serves, shapes = endless(model), []
    forward: Any = type(model).forward

    def counting(self: PreTrainedModel, **given: torch.Tensor) -> object:
        shapes.append(tuple(given["input_ids"].shape))
        return forward(self, **given)

    monkeypatch.setattr(type(model), "forward", counting)
    requests = ask((5, 6, 7), 85)
    found = answer(serves, requests)
    said = [found[request.id].completion_ids for request in requests]
    rows = [len({ids[:end] for ids in said}) for end in range(1, 6)]
    assert shapes == [(1, 3), *((count, 1) for count in rows)]
    assert 1 < rows[0] < rows[-1] <= 85
    monkeypatch.undo()
    check(model, requests, found)


def test_log_probabilities_of_equal_histories_are_equal_to_the_last_bit(
    model: PreTrainedModel,
) -> None:
    requests = ask((5, 6, 7), 60) + ask((9, 4), 60, first=60)
    nats: dict[tuple[int, ...], set[float]] = {}
    for number, done in answer(endless(model), requests).items():
        for end in range(len(done.completion_ids)):
            history = (*requests[number].prompt_ids, *done.completion_ids[: end + 1])
            nats.setdefault(history, set()).add(done.logprobs[end])
    assert len(nats) < 120 * 6 and all(len(values) == 1 for values in nats.values())


def test_the_counts_are_exact(model: PreTrainedModel) -> None:
    serves, requests = endless(model), ask((5, 6, 7, 8), 40)
    found = answer(serves, requests)
    # The last token of a completion is never the input of a pass.
    least = distinct([(5, 6, 7, 8, *done.completion_ids[:-1]) for done in found.values()])
    assert serves.drain_metrics() == {
        "prompt_tokens": 40 * 4,
        "completion_tokens": 40 * 6,
        "cached_tokens": 0,
        "computed_tokens": least,
        "stored_tokens": least,
    }
    assert serves.drain_metrics() == {}


def test_requests_of_other_lengths_and_temperatures_share_rows_too(model: PreTrainedModel) -> None:
    requests = [
        Request(
            id=number,
            policy="p",
            prompt_ids=(5, 6, 7),
            seed=number,
            max_tokens=1 + number % 7,
            temperature=(0.0, 0.3, 1.0)[number % 3],
        )
        for number in range(60)
    ]
    serves = endless(model)
    found = answer(serves, requests)
    check(model, requests, found)
    ids = [(5, 6, 7, *done.completion_ids[:-1]) for done in found.values()]
    assert serves.drain_metrics()["computed_tokens"] == distinct(ids)


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
@pytest.mark.parametrize("seed", range(3))
def test_conversations_that_come_and_go_are_those_of_a_plain_loop(seed: int, kind: str) -> None:
    """Combine shared prompts, second turns, small caches and requests that join."""
    rng, model = Random(seed), llama(seed, vocab_size=12, max_position_embeddings=80).double()
    model.set_attn_implementation(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    settings = {"max_rows": rng.choice([3, 50]), "stride": rng.choice([1, 4])}
    settings |= {"prefix_tokens": rng.choice([0, 30, 500]), "prefill_tokens": rng.choice([1, 100])}
    serves = endless(model, **settings)
    prompts: list[tuple[int, ...]] = [tuple(rng.choices(range(12), k=rng.randint(1, 9)))]
    asked: dict[int, Request] = {}
    found: dict[int, Completion] = {}
    for round_ in range(6):
        for _ in range(12):
            number = len(asked)
            asked[number] = Request(
                id=number,
                policy="p",
                prompt_ids=rng.choice(prompts),
                seed=number,
                max_tokens=rng.randint(1, 5),
                temperature=rng.choice([0.0, 1.0, 1.0]),
            )
            serves.add(asked[number])
        for _ in range(3):
            for done in serves.step():
                found[done.id] = done
                before = (*asked[done.id].prompt_ids, *done.completion_ids)
                prompts.append((*before, *rng.choices(range(12), k=rng.randint(1, 4))))
        prompts = [prompt for prompt in prompts if len(prompt) < 70]
        if round_ == 3:
            serves.publish("p", {}, 1) if len(found) == len(asked) else serves.forget()
    while len(found) < len(asked):
        found |= {done.id: done for done in serves.step()}
    check(model, list(asked.values()), found)


class Forgetful(LlamaForCausalLM):
    """A model that is wrong only where several tokens continue cached keys and values."""

    def forward(self, *args: Any, **given: Any) -> Any:
        places: Any = given.get("position_ids")
        cache = given.get("past_key_values")
        if cache is not None and cache.get_seq_length() and places.shape[1] > 1:
            given["position_ids"] = places * 0
        return super().forward(*args, **given)


class Mistaken(LlamaForCausalLM):
    """A model that is wrong only in a decoding step with more rows than there were prompts."""

    prompts = 0

    def forward(self, *args: Any, **given: Any) -> Any:
        places: Any = given.get("position_ids")
        cache = given.get("past_key_values")
        if cache is not None and cache.get_seq_length() == 0:
            self.prompts = len(places)
        if cache is not None and places.shape[1] == 1 and len(places) > self.prompts:
            given["position_ids"] = places * 0
        return super().forward(*args, **given)


@pytest.mark.parametrize("kind", [Forgetful, Mistaken])
def test_a_model_that_is_wrong_in_one_kind_of_pass_is_refused(kind: type[Any]) -> None:
    right = llama(0, vocab_size=50)
    engine(right)
    with pytest.raises(ConfigError, match="log-probabilities change"):
        engine(kind(right.config).eval())


def test_rows_of_completions_that_have_ended_are_filled_again(model: PreTrainedModel) -> None:
    serves = endless(model, stride=1)
    for number in range(60):
        prompts = [(5, number, each) for each in range(8)]
        requests = [each for n, p in enumerate(prompts) for each in ask(p, 1, n, max_tokens=1)]
        assert len(answer(serves, requests)) == 8
    assert serves._batches["p"].cache.slots == 8
    # Longer requests stay in flight in the meantime.
    for number, request in enumerate(ask((9, 9), 4, first=100, max_tokens=40)):
        serves.add(request)
        assert answer(serves, ask((4, number), 1, max_tokens=1))
    assert serves._batches["p"].cache.slots <= 10
