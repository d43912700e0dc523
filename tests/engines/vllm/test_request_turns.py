"""Tests of the order in which the requests of several policies enter vLLM."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from selfplay.engines.vllm.engine import VLLMEngine
from selfplay.models.lora import adapted
from selfplay.models.policy_settings import Lora
from selfplay.types import Completion, Request
from tests.helpers.engine_requests import END, answer
from tests.helpers.vllm_engine import difference, finish, make, shake

pytestmark = pytest.mark.vllm

ROWS = 4
SHARED = 64
"""Number of tokens of a prefix: two blocks of the cache."""


@pytest.fixture(scope="module")
def shared() -> Iterator[VLLMEngine]:
    engine = VLLMEngine(max_rows=ROWS, cache=0.1, options={"block_size": 32})
    engine.serve("resident", make(layers=1), [END])  # keeps the vLLM engine of this shape
    yield engine
    engine.close()


@pytest.fixture
def engine(shared: VLLMEngine) -> Iterator[VLLMEngine]:
    for seed, policy in enumerate("pq", start=1):
        shared.serve(policy, make(seed, layers=1), [])
    shared.drain_metrics()
    yield shared
    for policy in "pq":
        shared.withdraw(policy)


def request(number: int, policy: str = "p", *, prompt: int = 3, said: int) -> Request:
    ids = tuple(5 + place % 200 for place in range(prompt))
    return Request(id=number, policy=policy, prompt_ids=ids, seed=number, max_tokens=said)


def test_waiting_requests_read_no_prefix_of_the_old_weights(
    engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "in_flight_updates", True)
    tenant, _ = engine._policies["p"]
    requests = [request(n, prompt=150, said=60) for n in range(3 * ROWS)]
    for each in requests:
        engine.add(each)
    found = engine.step()
    shake(tenant.model, 1, 0.2)
    engine.publish("p", {}, 1)
    found += finish(engine)
    assert len(found) == len(requests)
    later = {done.id: done for done in found if done.id >= ROWS}
    assert {(done.version, done.versions) for done in later.values()} == {(1, ())}
    assert difference(tenant.model, requests[ROWS:], later) < 1e-5


@pytest.mark.parametrize("lora", [None, Lora(rank=4)], ids=["weights", "adapter"])
def test_requests_that_vllm_has_not_begun_use_the_new_weights(
    lora: Lora | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM takes 8 prompts at once; each of the 3 passes before the update has room for one."""
    model = make(layers=1)
    if lora is not None:
        model = adapted(model.requires_grad_(False), lora, seed=1, where="x").eval()
    shared = tuple(5 + place % 200 for place in range(SHARED))
    requests = [
        Request(
            id=n,
            policy="p",
            prompt_ids=shared + tuple(5 + (n + 1) * place % 311 for place in range(130)),
            seed=n,
            max_tokens=40,
        )
        for n in range(8)
    ]
    monkeypatch.setattr("selfplay.engines.vllm.engine.STRIDE", 3)
    engine = VLLMEngine(max_rows=8, prefill_tokens=8, cache=0.1, options={"block_size": 32})
    engine.in_flight_updates = True
    engine.serve("p", model, [])
    try:
        for each in requests:
            engine.add(each)
        found = engine.step()
        tenant, tenants = engine._policies["p"]
        assert not tenant.waiting and tenant.in_flight == 8 and not found
        shake(model, 1, 0.2)
        engine.publish("p", {}, 1)
        engine.drain_metrics()
        found += finish(engine)
        assert tenants.host.idle
        done = {each.id: each for each in found}
        assert {each.id for each in found if each.versions} == {0, 1, 2}
        late = requests[3:]
        assert {(done[each.id].version, done[each.id].versions) for each in late} == {(1, ())}
        assert difference(model, late, done) < 1e-5
        # The first request of each version computes the prefix; the later ones read it.
        assert engine.drain_metrics()["cached_tokens"] == (2 + 4) * SHARED
        alone = answer(engine, late[-1:])[late[-1].id]
        assert alone.completion_ids == done[alone.id].completion_ids
    finally:
        engine.close()


def test_a_policy_waits_while_requests_of_others_are_in_flight(engine: VLLMEngine) -> None:
    requests = [request(n, said=40) for n in range(ROWS)]
    for each in requests:
        engine.add(each)
    found = engine.step()
    late = make(7, layers=1)
    engine.serve("late", late, [])
    engine.add(request(9, "late", said=5))
    found += finish(engine)
    done = {each.id: each for each in found}
    assert difference(engine._policies["p"][0].model, requests, done) < 1e-5
    assert difference(late, [request(9, "late", said=5)], done) < 1e-5
    engine.withdraw("late")


def test_a_turn_fills_the_rows_again_and_ends_while_more_keeps_coming(engine: VLLMEngine) -> None:
    engine.add(request(0, said=60))
    for number in range(1, 5 * ROWS):
        engine.add(request(number, said=2))
    engine.add(request(100, "q", said=5))
    found: list[Completion] = []
    for late in range(200, 300):
        found += engine.step()
        if any(done.id == 100 for done in found):
            break
        engine.add(request(late, said=5))
    ids = [done.id for done in found]
    assert sorted(ids[:-2]) == [*range(1, 5 * ROWS)]  # next to the long request, and no later one
    assert ids[-2:] == [0, 100]
    assert engine.drain_metrics()["loads"] == 2  # one turn for each policy
    assert {done.id for done in finish(engine)} == set(range(200, late))


def test_a_full_batch_takes_games_in_progress_first(engine: VLLMEngine) -> None:
    fresh = [request(n, said=3) for n in range(3 * ROWS)]
    for each in fresh:
        engine.add(each)
    found = engine.step()
    assert len(found) == ROWS
    for number in range(3):
        engine.add(replace(request(100 + number, said=3), turns_taken=1 + number))
    found = engine.step()
    assert {done.id for done in found} == {100, 101, 102, ROWS}
    assert [done.id for done in finish(engine)] == [*range(ROWS + 1, 3 * ROWS)]


def test_adapters_take_games_in_progress_first() -> None:
    base = make(layers=1).requires_grad_(False)
    engine = VLLMEngine(max_rows=2, cache=0.1, options={"block_size": 32})
    for seed, policy in enumerate("pq"):
        engine.serve(policy, adapted(base, Lora(rank=4), seed=seed, where="x").eval(), [])
    try:
        for number in range(4):
            engine.add(request(number, said=2))
        engine.add(replace(request(4, "q", said=2), turns_taken=1))
        assert {done.id for done in engine.step()} == {4, 0}
        assert {done.id for done in engine.step()} == {1, 2}
    finally:
        engine.close()


def test_games_in_progress_overtake_prompts_that_wait_in_vllm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forward pass has room for one of these prompts."""
    monkeypatch.setattr("selfplay.engines.vllm.engine.STRIDE", 1)
    engine = VLLMEngine(max_rows=8, prefill_tokens=8, cache=0.1, options={"block_size": 32})
    engine.serve("p", make(layers=1), [])
    try:
        prompts = [tuple(5 + (n + 1) * place % 311 for place in range(190)) for n in range(6)]
        *fresh, played = [replace(request(n, said=1), prompt_ids=prompts[n]) for n in range(6)]
        for each in fresh:
            engine.add(each)
        found = engine.step()
        engine.add(replace(played, turns_taken=2))
        tenant, _ = engine._policies["p"]
        found += engine.step()
        assert not tenant.queued and tenant.in_flight == 4
        found += finish(engine)
        assert [done.id for done in found] == [0, 5, 1, 2, 3, 4]
    finally:
        engine.close()
