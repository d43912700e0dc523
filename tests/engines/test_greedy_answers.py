"""Tests that equal greedy requests are computed once under the same weights."""

import copy
from dataclasses import replace
from functools import partial

from transformers import PreTrainedModel

from selfplay.types import Observation
from tests.engines.test_shared_rows import ask, check, endless
from tests.helpers.builders import llama
from tests.helpers.engine_requests import answer

PROMPT = (5, 6, 7)


def test_equal_requests_at_once_and_later_are_computed_once(model: PreTrainedModel) -> None:
    serves = endless(model, prefix_tokens=0)
    requests = ask(PROMPT, 20, temperature=0.0)
    check(model, requests, answer(serves, requests))
    assert serves.drain_metrics()["computed_tokens"] == 3 + 5
    later = ask(PROMPT, 20, first=50, temperature=0.0, agent="b", observation=Observation(text="x"))
    check(model, later, answer(serves, later))
    counts = serves.drain_metrics()
    assert counts["computed_tokens"] == 0 and counts["completion_tokens"] == 20 * 6
    other = ask(PROMPT, 1, temperature=0.0, max_tokens=4) + ask(PROMPT, 1, first=1)
    check(model, other, answer(serves, other))


def test_requests_of_other_groups_and_turns_are_equal(model: PreTrainedModel) -> None:
    serves = endless(model, prefix_tokens=0)
    first, second = ask(PROMPT, 2, temperature=0.0)
    check(model, [first], answer(serves, [first]))
    serves.drain_metrics()
    later = replace(second, group_seed=7, turns_taken=3)
    check(model, [later], answer(serves, [later]))
    assert serves.drain_metrics()["computed_tokens"] == 0


def test_requests_with_equal_stop_strings_are_equal(model: PreTrainedModel) -> None:
    serves = endless(model, prefix_tokens=0)
    first, second = (
        replace(request, stop=("zzz",), decode=partial(str))
        for request in ask(PROMPT, 2, temperature=0.0)
    )
    answer(serves, [first])
    serves.drain_metrics()
    answer(serves, [second])
    assert serves.drain_metrics()["computed_tokens"] == 0


def test_a_request_waits_for_one_that_is_in_flight(model: PreTrainedModel) -> None:
    serves = endless(model, stride=1, prefix_tokens=0)
    first, second = ask(PROMPT, 2, temperature=0.0)
    serves.add(first)
    assert serves.step() == []
    serves.add(second)
    found = {done.id: done for _ in range(4) for done in serves.step()}
    check(model, [first, second], found)
    assert serves.drain_metrics()["computed_tokens"] == 3 + 5


def test_new_weights_compute_equal_requests_again() -> None:
    before, after = llama(0, vocab_size=50), llama(1, vocab_size=50)
    serves = endless(copy.deepcopy(before), stride=1)
    serves.in_flight_updates = True
    early, late, last = ask(PROMPT, 3, temperature=0.0)
    assert len(answer(serves, [early])) == 1
    serves.add(late)
    assert [done.id for done in serves.step()] == [1]
    serves.forget()
    serves.add(late)
    serves.step()
    serves.publish("p", after.state_dict(), 1)
    serves.add(last)
    found = {done.id: done for _ in range(8) for done in serves.step()}
    assert found[1].versions == ((0, 2), (1, 4)) and found[2].version == 1
    check(after, [last], found)
    check(after, [early], answer(serves, [early]))
