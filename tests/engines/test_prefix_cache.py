"""Tests that prompts reuse keys and values of earlier prompts, never those of other weights."""

import copy
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from selfplay.engines.kv_cache import SlotCache
from selfplay.engines.prefix_cache import PrefixCache, common
from selfplay.errors import ConfigError
from selfplay.types import Completion, Request
from tests.engines.test_shared_rows import ask, check, endless
from tests.helpers.builders import llama
from tests.helpers.engine_requests import answer, distinct, engine

PROMPT = (5, 6, 7, 8, 9, 10)


def turn(done: Completion, prompt: tuple[int, ...], message: tuple[int, ...]) -> tuple[int, ...]:
    return (*prompt, *done.completion_ids, *message)


def test_a_next_turn_computes_only_what_is_new(model: PreTrainedModel) -> None:
    serves = endless(model)
    prompts: dict[int, tuple[int, ...]] = dict.fromkeys(range(8), PROMPT)
    asked = 0
    known: list[tuple[int, ...]] = []
    for _ in range(4):
        requests = [
            Request(id=number, policy="p", prompt_ids=prompt, seed=number + asked, max_tokens=5)
            for number, prompt in prompts.items()
        ]
        found = answer(serves, requests)
        check(model, requests, found)
        said = [(*prompts[number], *done.completion_ids[:-1]) for number, done in found.items()]
        counts, new = serves.drain_metrics(), distinct(known + said) - distinct(known)
        assert counts["computed_tokens"] == counts["stored_tokens"] == new
        assert counts["cached_tokens"] == (
            sum(len(prompt) - 4 for prompt in {*prompts.values()}) if known else 0
        )
        prompts = {n: turn(done, prompts[n], (30, 31, 32)) for n, done in found.items()}
        known, asked = known + said, asked + 100


def test_prompts_of_one_batch_compute_their_beginning_once(model: PreTrainedModel) -> None:
    rules = tuple(range(3, 103))
    prompts = [(*rules, 5, number, 6, 7) for number in range(40, 46)]
    requests = [request for n, p in enumerate(prompts) for request in ask(p, 3, 3 * n)]
    serves = endless(model)
    found = answer(serves, requests)
    check(model, requests, found)
    said = [(*r.prompt_ids, *found[r.id].completion_ids[:-1]) for r in requests]
    # The prompts share the rules and the next token.
    assert distinct(prompts) == 101 + 6 * 3
    assert serves.drain_metrics()["computed_tokens"] == distinct(said)


def test_new_weights_never_use_the_keys_of_other_weights() -> None:
    before, after = llama(0, vocab_size=50), llama(1, vocab_size=50)
    served: Any = copy.deepcopy(before)
    serves = endless(served)
    requests = ask(PROMPT, 5)
    check(before, requests, answer(serves, requests))
    serves.publish("p", after.state_dict(), 1)
    check(after, requests, answer(serves, requests))
    with torch.no_grad():  # in place, like an optimizer, and without `publish`
        for own, new in zip(served.parameters(), before.parameters(), strict=True):
            own.copy_(new)
    check(before, requests, answer(serves, requests))
    assert "cached_tokens" not in {k for k, v in serves.drain_metrics().items() if v}


def test_rows_that_began_with_older_weights_are_not_cached() -> None:
    before, after = llama(0, vocab_size=50), llama(1, vocab_size=50)
    serves = endless(copy.deepcopy(before), stride=1)
    serves.in_flight_updates = True
    for request in ask(PROMPT, 3, max_tokens=8):
        serves.add(request)
    assert serves.step() == []
    serves.publish("p", after.state_dict(), 1)
    found = {done.id: done for _ in range(7) for done in serves.step()}
    assert len(found) == 3 and found[0].versions == ((0, 2), (1, 6))
    assert serves.drain_metrics()["stored_tokens"] == 0
    later = [
        Request(
            id=9,
            policy="p",
            prompt_ids=turn(found[0], PROMPT, (3, 4)),
            seed=9,
            max_tokens=6,
        )
    ]
    check(after, later, answer(serves, later))


@pytest.mark.parametrize("way", ["release", "forget", "sleep"])
def test_cached_prefixes_can_be_freed(model: PreTrainedModel, way: str) -> None:
    serves, requests = endless(model), ask(PROMPT, 1)
    answer(serves, requests)
    answer(serves, requests)
    assert serves.drain_metrics()["cached_tokens"] == len(PROMPT) - 1
    serves.release("p") if way == "release" else getattr(serves, way)()
    check(model, requests, answer(serves, requests))
    assert serves.drain_metrics()["cached_tokens"] == 0


def test_an_engine_asleep_on_a_gpu_holds_no_rows(model: PreTrainedModel) -> None:
    serves = endless(model)
    answer(serves, ask(PROMPT, 1))
    (batch,) = serves._distinct()
    serves.sleep()
    assert len(batch.owners), "on a CPU the buffer stays"
    batch.device = torch.device("meta")  # any device but the CPU
    serves.sleep()
    assert not len(batch.owners)
    batch.device = torch.device("cpu")
    batch.release("p")
    check(model, ask(PROMPT, 1), answer(serves, ask(PROMPT, 1)))


def test_a_cache_of_no_tokens_keeps_nothing(model: PreTrainedModel) -> None:
    serves, requests = endless(model, prefix_tokens=0), ask(PROMPT, 4)
    for _ in range(2):
        check(model, requests, answer(serves, requests))
    counts = serves.drain_metrics()
    assert counts["cached_tokens"] == counts["stored_tokens"] == 0
    with pytest.raises(ConfigError, match=r"engine.prefix_tokens: must be at least 0, not -1"):
        engine(model, prefix_tokens=-1)


class Rows:
    """A cache of two layers whose keys and values encode their tokens."""

    def __init__(self) -> None:
        self.cache = SlotCache(2, torch.device("cpu"))
        self.cache.extend(4, 40)
        for number, layer in enumerate(self.cache.layers):
            like = torch.zeros(1, 2, 1, 3)
            layer.lazy_initialization(like, like[..., :1])
            assert layer.keys.shape == (4, 2, 40, 3) and number < 2

    def filled(self, row: int, tokens: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        for number, layer in enumerate(self.cache.layers):
            for column, token in enumerate(tokens):
                layer.keys[row, :, column] = token + 100 * number
                layer.values[row, :, column] = -token - 100 * number
        return {row: tokens}

    def found(self, kept: PrefixCache, prompt: tuple[int, ...], row: int = 3) -> int:
        """Return the number of cached tokens of a prompt; check their keys and values."""
        for layer in self.cache.layers:
            layer.keys[row], layer.values[row] = 0, 0
        self.cache.lengths[row] = 0
        (count,) = kept.load(self.cache, [row], [prompt])
        assert int(self.cache.lengths[row]) == count
        for number, layer in enumerate(self.cache.layers):
            wanted = torch.zeros(40)
            wanted[:count] = torch.tensor(prompt[:count]) + 100.0 * number
            assert torch.equal(layer.keys[row], wanted[:, None].expand(2, 40, 3))
            assert torch.equal(layer.values[row], -wanted[:, None].expand(2, 40, 1))
        return count


def test_the_longest_known_beginning_is_found() -> None:
    rows, kept = Rows(), PrefixCache(100)
    assert kept.store(rows.cache, rows.filled(0, (1, 2, 3, 4, 5, 6))) == 6
    assert kept.store(rows.cache, rows.filled(0, (1, 2, 3, 4, 5, 6))) == 0
    branches = rows.filled(1, (1, 2, 3, 7, 8)) | rows.filled(2, (9,)) | rows.filled(0, (1, 2))
    assert kept.store(rows.cache, branches) == 3 and len(kept) == 9
    assert rows.found(kept, (1, 2, 3, 4, 5, 6, 7)) == 6
    assert rows.found(kept, (1, 2, 3, 4, 5, 6)) == 5  # the last token gives the logits
    assert rows.found(kept, (1, 2, 3, 7, 9)) == 4
    assert rows.found(kept, (1, 2, 9)) == 2
    assert rows.found(kept, (9, 9, 9)) == 1
    assert rows.found(kept, (2, 3)) == 0


def test_the_longest_unused_is_evicted_from_its_end() -> None:
    rows, kept = Rows(), PrefixCache(12)
    kept.store(rows.cache, rows.filled(0, (1, 2, 3, 4)))
    kept.store(rows.cache, rows.filled(0, (1, 2, 5, 6)))
    kept.store(rows.cache, rows.filled(0, (7, 8, 9)))
    assert len(kept) == 9
    assert rows.found(kept, (1, 2, 3, 4, 0)) == 4
    kept.store(rows.cache, rows.filled(0, (20, 21, 22, 23, 24)))  # evicts (5, 6)
    assert rows.found(kept, (1, 2, 5, 6, 0)) == 2
    assert rows.found(kept, (7, 8, 9, 0)) == 3
    kept.store(rows.cache, rows.filled(0, tuple(range(30, 50))))  # more than the cache can hold
    assert len(kept) == 12 and rows.found(kept, tuple(range(30, 50))) == 12
    for number in range(50):
        kept.store(rows.cache, rows.filled(0, (60 + number % 7, number, number, 1)))
        assert len(kept) <= 12
        assert rows.found(kept, (60 + number % 7, number, number, 1, 2)) == 4


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [((), (), 0), ((1,), (2,), 0), ((1,), (1, 2), 1), ((1, 2, 3, 4), (1, 2, 3, 5), 3)],
)
def test_common_prefixes(one: tuple[int, ...], other: tuple[int, ...], count: int) -> None:
    assert common(one, other) == common(other, one) == count
