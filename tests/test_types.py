"""Tests of the value types: conversion to JSON and back, with any text, and pickles."""

import dataclasses
import json
import pickle
from typing import Any

import pytest

from selfplay.types import (
    Demonstration,
    Observation,
    StopReason,
    Task,
    from_json,
    to_json,
    well_formed,
)
from tests.helpers.builders import episode, group, sample, turn

WILD = "\x00 \u202e\u0639 \ud800 <|im_end|> \U0001f9ea \udfff"

TURN = turn(
    "solver_1",
    0.5,
    completion_ids=(5, 6),
    messages=({"role": "user", "content": WILD},),
    text=WILD,
    action=WILD,
    stop_reason=StopReason.LENGTH,
    info={"verdict": WILD, "right": True},
)


@pytest.mark.parametrize(
    "value",
    [
        Task(id="t", type="deduction", payload={"inputs": ["1"], "deep": {"a": [None, 1.5]}}),
        TURN,
        episode(TURN, turn("a_0", action=None), metrics={"rate": 0.25}, created=(Task(id="n"),)),
        group(episode(TURN)),
        episode(TURN, other_pay={"solver_1": (), "judge_0": ((-1, 0.5), (3, -1.0))}),
        sample([1, 2], [3, 4], (0.5, -0.5)),
        sample([1], [3], -1.0),
        Demonstration(role="solver", observation=Observation(text="x"), completion=WILD),
    ],
    ids=lambda value: type(value).__name__,
)
def test_conversion_to_json_and_back_keeps_the_value(value: Any) -> None:
    assert from_json(type(value), json.loads(json.dumps(to_json(value)))) == value


def test_an_old_record_without_other_pay_is_read() -> None:
    old = to_json(episode(TURN))
    del old["other_pay"]
    assert from_json(type(episode()), old) == episode(TURN)


@pytest.mark.parametrize("value", [Task(id="t", payload={"a": [1]}), TURN, episode(TURN)])
def test_pickled_values_are_equal(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value, protocol=5)) == value


def test_pickled_values_of_another_version_are_refused() -> None:
    fewer = TURN.__getstate__()[:-1]
    with pytest.raises(ValueError, match="a pickled Turn of another version"):
        TURN.__setstate__(fewer)


def test_wrong_json_data_is_refused() -> None:
    with pytest.raises(ValueError, match="id"):
        from_json(Task, {"type": "deduction"})
    with pytest.raises(ValueError, match="status"):
        from_json(type(episode()), {**to_json(episode()), "status": "happy"})


def test_values_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Task(id="a").id = "b"  # type: ignore[misc]


def test_only_lone_surrogates_are_replaced() -> None:
    calm = WILD.replace("\ud800", "").replace("\udfff", "")
    assert well_formed(calm) is calm
    assert well_formed("a\ud800b\udfff\ud83d\ude00") == "a\ufffdb\ufffd\ufffd\ufffd"
    well_formed("\ud800" * 500_000).encode()


def test_agents_in_order_of_their_first_turn() -> None:
    assert episode(turn("b_0"), turn("a_0"), turn("b_0")).agents() == ("b_0", "a_0")
