"""Whose requests vLLM has, and which wait outside of it."""

from collections.abc import Iterator

import pytest
from served_by_vllm import difference, finish, make, shake
from serving import END

from selfplay.engines.vllm import VLLMEngine
from selfplay.types import Completion, Request

pytestmark = pytest.mark.vllm

ROWS = 4


@pytest.fixture(scope="module")
def shared() -> Iterator[VLLMEngine]:
    engine = VLLMEngine(max_rows=ROWS, cache=0.1, options={"block_size": 32})
    engine.serve("resident", make(layers=1), [END])  # keeps the engine of its shape
    yield engine
    engine.close()


@pytest.fixture
def engine(shared: VLLMEngine) -> Iterator[VLLMEngine]:
    for seed, policy in enumerate("pq", start=1):
        shared.serve(policy, make(seed, layers=1), [])
    shared.drain_counts()
    yield shared
    for policy in "pq":
        shared.withdraw(policy)


def request(number: int, policy: str = "p", *, prompt: int = 3, said: int) -> Request:
    ids = tuple(5 + place % 200 for place in range(prompt))
    return Request(id=number, policy=policy, prompt_ids=ids, seed=number, max_tokens=said)


def test_what_waits_reads_no_prefix_of_the_weights_before(
    engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "partial", True)
    tenant, _ = engine._tenants["p"]
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
    assert sorted(ids[:-2]) == [*range(1, 5 * ROWS)]  # beside the long one, and nothing later
    assert ids[-2:] == [0, 100]
    assert engine.drain_counts()["loads"] == 2  # one turn each
    assert {done.id for done in finish(engine)} == set(range(200, late))
