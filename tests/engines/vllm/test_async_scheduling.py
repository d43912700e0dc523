"""Tests of async scheduling: equal samples, no lost request, and the right versions.

vLLM turns it off on a CPU; `tests.helpers.vllm_ahead` says which parts of vLLM are replaced.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from selfplay.engines.vllm import served_policies
from selfplay.engines.vllm.engine import VLLMEngine
from selfplay.errors import ConfigError
from selfplay.models.lora import adapted, frozen_copy
from selfplay.models.policy_settings import Lora
from selfplay.types import Completion, Request
from tests.helpers.engine_requests import END, answer, teacher
from tests.helpers.vllm_ahead import ahead
from tests.helpers.vllm_engine import asked, difference, emptied, finish, make, shake

pytestmark = pytest.mark.vllm

ROWS = 8
ENDS = (END, *range(100, 120))
"""End tokens that are sampled often."""


def started(**settings: Any) -> VLLMEngine:
    return VLLMEngine(max_rows=ROWS, cache=0.1, options={"block_size": 32}, **settings)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[VLLMEngine, VLLMEngine]]:
    """Yield an engine without async scheduling, and one with it."""
    with ahead():
        engines = started(), started(async_scheduling="auto")
        for engine in engines:
            engine.serve("resident", make(), [END])
        yield engines
        for engine in engines:
            engine.close()


@pytest.fixture
def plain(pair: tuple[VLLMEngine, VLLMEngine]) -> Iterator[VLLMEngine]:
    yield from emptied(pair[0])


@pytest.fixture
def engine(pair: tuple[VLLMEngine, VLLMEngine]) -> Iterator[VLLMEngine]:
    yield from emptied(pair[1])


def scheduled(engine: VLLMEngine) -> list[int]:
    """Return the token counts of the steps that are not read yet; the next one to read is last."""
    (group,) = engine._groups.values()
    steps = group.host.engine.engine_core.engine_core.batch_queue or ()
    return [step.total_num_scheduled_tokens for _, step, _ in steps]


def same(one: dict[int, Completion], other: dict[int, Completion]) -> None:
    """Require equal tokens, ends and versions, and log-probabilities that are equal to rounding.

    With async scheduling, a request joins the batch one step later, so passes have other rows.
    """
    assert one.keys() == other.keys()
    for number, done in one.items():
        found = other[number]
        assert replace(found, logprobs=done.logprobs) == done
        assert found.logprobs == pytest.approx(done.logprobs, abs=1e-5)


def some(count: int = 60) -> list[Request]:
    """Return more requests than rows, with each kind of end and of truncation."""

    def decode(ids: Sequence[int]) -> str:
        return " ".join(map(str, ids)) + " "

    stop = tuple(f" {token} " for token in range(120, 160))
    kinds: list[dict[str, Any]] = [
        {},
        {"stop": stop, "decode": decode},
        {"top_p": 0.7, "top_k": 9, "min_p": 0.02},
        {"temperature": 0.0},
    ]
    requests = asked("p", count, max_tokens=30)
    return [replace(each, **kinds[each.id % len(kinds)]) for each in requests]


def test_samples_are_those_of_an_engine_that_schedules_no_step_ahead(
    plain: VLLMEngine, engine: VLLMEngine
) -> None:
    found = []
    for each in (plain, engine):
        each.serve("p", make(1), ENDS)
        found.append(answer(each, some()))
    same(*found)
    ends = {(done.stop_reason, len(done.completion_ids) > 1) for done in found[0].values()}
    assert len(ends) >= 3
    model, requests = engine._policies["p"][0].model, asked("p")
    assert difference(model, requests, answer(engine, requests)) < 1e-5


def test_the_next_step_has_started_when_a_step_returns(
    plain: VLLMEngine, engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selfplay.engines.vllm.engine.STRIDE", 3)
    for each in (plain, engine):
        each.serve("p", make(1), [])
        each.add(Request(id=0, policy="p", prompt_ids=(5, 6), seed=0, max_tokens=9))
        assert not each.step()
        assert scheduled(each) == ([1] if each is engine else [])
        assert len(finish(each)) == 1


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("kind", ["plain", "engine"])
def test_tokens_have_the_version_of_the_weights_that_sampled_them(
    kind: str, steps: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update arrives while a step with the old weights is under way.

    After one step, the engine with async scheduling has not read a token of any request.
    """
    engine: VLLMEngine = request.getfixturevalue(kind)
    monkeypatch.setattr("selfplay.engines.vllm.engine.STRIDE", steps)
    monkeypatch.setattr(engine, "in_flight_updates", True)
    model, old = make(1), make(1)
    engine.serve("p", model, [])
    asked_for = [
        Request(id=n, policy="p", prompt_ids=(5 + n, 9), seed=n, max_tokens=steps + n)
        for n in range(2 * ROWS)
    ]
    for each in asked_for:
        engine.add(each)
    found = engine.step()
    shake(model, 1, 0.2)
    engine.publish("p", {}, 1)
    done = {each.id: each for each in found + finish(engine)}
    assert len(done) == len(asked_for)
    assert (done[0].version, done[0].versions) == (0, ())  # ended by the old weights
    for each in asked_for[1:ROWS]:
        assert done[each.id].versions == ((0, steps), (1, each.max_tokens - steps))
        nats = torch.tensor(done[each.id].logprobs)
        apart = (nats - teacher(old, each, done[each.id], 1.0)).abs()
        assert float(apart[:steps].max()) < 1e-4 < 1e-3 < float(apart[steps])
    late = asked_for[ROWS:]
    assert {(done[each.id].version, done[each.id].versions) for each in late} == {(1, ())}
    assert difference(model, late, done) < 1e-5


def test_policies_come_and_go_between_steps_and_no_request_is_lost(
    plain: VLLMEngine, engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[int, Completion]] = []
    load = served_policies.load_weights
    for each in (plain, engine):

        def watched(*given: Any, served: VLLMEngine = each, **settings: Any) -> None:
            assert not scheduled(served), "a step is under way while weights change"
            load(*given, **settings)

        monkeypatch.setattr(served_policies, "load_weights", watched)
        done: dict[int, Completion] = {}
        for number in range(4):
            name, model = f"p{number}", make(number)
            each.serve(name, model, ENDS)  # the previous policy has requests in flight
            requests = [
                replace(r, id=r.id + 100 * number, policy=name) for r in asked("p", 20, seed=number)
            ]
            for request in requests:
                each.add(request)
            done |= {c.id: c for c in each.step()}
            if number:
                before = f"p{number - 1}"
                while each._policies[before][0].busy:
                    done |= {c.id: c for c in each.step()}
                each.withdraw(before)
        done |= {c.id: c for c in finish(each)}
        found.append(done)
    assert len(found[0]) == 80
    same(*found)


def test_no_step_is_under_way_in_an_engine_that_sleeps(
    engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM pauses and resumes; on a CPU, it keeps its memory."""
    model = make(1)
    engine.serve("p", model, ENDS)
    (group,) = engine._groups.values()
    monkeypatch.setattr(engine, "_settings", replace(engine._settings, sleep=True))
    monkeypatch.setattr(group.host, "settings", engine._settings)
    for version in range(1, 4):
        answer(engine, asked("p", 20, seed=version))
        assert scheduled(engine)
        engine.sleep()
        assert group.host._asleep and not scheduled(engine)
        shake(model, version)
        engine.publish("p", model.state_dict(), version)
        requests = asked("p", 20, seed=10 + version)
        found = answer(engine, requests)
        assert difference(model, requests, found) < 1e-5
        assert {done.version for done in found.values()} == {version}


def test_adapters_change_while_others_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three adapters is withdrawn, and another one gets new weights during its requests."""
    monkeypatch.setattr("selfplay.engines.vllm.engine.STRIDE", 4)
    base = make(3).requires_grad_(False)
    models = {
        name: adapted(base, Lora(rank=4), seed=seed, where="x").eval()
        for seed, name in enumerate("abc")
    }
    for seed, model in enumerate(models.values()):
        shake(model, seed, 0.2)
    old = frozen_copy(models["a"])
    requests = [
        Request(
            id=n,
            policy="abc"[n % 3] if n < ROWS else "ab"[n % 2],
            prompt_ids=(9, 5 + n),
            seed=n,
            max_tokens=3 if n in (2, 5) else 6 + n % 5,
        )
        for n in range(3 * ROWS)
    ]
    with ahead():
        engine = started(adapters=3, async_scheduling="auto")
        engine.in_flight_updates = True
        try:
            for name, model in models.items():
                engine.serve(name, model, [])
            for each in requests:
                engine.add(each)
            done = {each.id: each for each in engine.step()}
            assert {*done} == {2, 5} and scheduled(engine)
            engine.withdraw("c")
            shake(models["a"], 20, 0.2)
            engine.publish("a", {}, 1)
            done |= {each.id: each for each in finish(engine)}
        finally:
            engine.close()
    assert len(done) == len(requests)
    for each in requests:
        found = done[each.id]
        nats = torch.tensor(found.logprobs)
        if each.policy == "a" and each.id < ROWS:
            assert found.versions == ((0, 4), (1, each.max_tokens - 4))
            apart = (nats - teacher(old, each, found, 1.0)).abs()
            assert float(apart[:4].max()) < 1e-4 < 1e-3 < float(apart[4])
        else:
            apart = (nats - teacher(models[each.policy], each, found, 1.0)).abs()
            assert float(apart.max()) < 1e-4
            assert (found.version, found.versions) == (int(each.policy == "a"), ())


def test_only_the_end_of_a_request_is_reported(
    plain: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.serve("p", make(1), ENDS)
    (group,) = plain._groups.values()
    step = group.host.engine.step
    outputs: list[list[Any]] = []

    def recorded() -> list[Any]:
        outputs.append(step())
        return outputs[-1]

    monkeypatch.setattr(group.host.engine, "step", recorded)
    answer(plain, some(20))
    assert [each.finished for made in outputs for each in made] == [True] * 20
    assert len(outputs) > 20


def test_impossible_async_scheduling_is_refused_in_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"turns async scheduling off on a CPU; set .*=false or auto"
    ):
        started(async_scheduling=True)
    with pytest.raises(ConfigError, match="must be true, false or auto, not 'on'"):
        started(async_scheduling="on")
    with pytest.raises(ConfigError, match=r"options\.async_scheduling: .* set engine\.async_sch"):
        VLLMEngine(options={"async_scheduling": True})
    guesses = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    engine = VLLMEngine(cache=0.1, options={"speculative_config": guesses})
    engine._settings = replace(engine._settings, async_scheduling=True)  # as on a GPU
    with pytest.raises(
        ConfigError,
        match=r"'p': .* only supported with .* \(here: engine\.async_scheduling=false\)",
    ) as raised:
        engine.serve("p", make(), [END])
    assert "\n" not in str(raised.value)
