"""Tests of the engine that answers with scripts instead of a model."""

from collections import Counter
from typing import Any

import pytest

from selfplay.engines.scripted import Script, ScriptedEngine, choice, constant, replay
from selfplay.errors import ConfigError
from selfplay.types import Completion, Observation, Request, StopReason


def answers(script: Script, count: int = 1, **fields: Any) -> list[Completion]:
    engine = ScriptedEngine({"p": script})
    settings: dict[str, Any] = {"max_tokens": 100, **fields}
    for number in range(count):
        engine.add(
            Request(id=number, policy="p", prompt_ids=(1,), seed=number, agent="a_0", **settings)
        )
    return engine.step()


def test_words_become_their_bytes() -> None:
    (done,) = answers(constant("zażółć"))
    assert bytes(done.completion_ids).decode() == done.text == "zażółć"
    assert done.logprobs == (0.0,) * len(done.completion_ids)
    assert done.stop_reason is StopReason.STOP


def test_long_words_are_cut_at_the_limit() -> None:
    (done,) = answers(constant("abcdef"), max_tokens=4)
    assert done.text == "abcd" and done.stop_reason is StopReason.LENGTH
    (done,) = answers(constant("abcd"), max_tokens=4)
    assert done.stop_reason is StopReason.STOP


def test_words_end_at_a_stop_string() -> None:
    (done,) = answers(constant("yes. no."), stop=(".",))
    assert done.text == "yes" and bytes(done.completion_ids) == b"yes"
    (done,) = answers(constant("yes. no."), stop=(".",), keep_stop=True)
    assert done.text == "yes." and done.stop_reason is StopReason.STOP


@pytest.mark.parametrize("text", ["", "\ud800", "\x00<|im_end|>", "\U0001f9ea" * 100])
def test_any_words_are_text_that_can_be_written(text: str) -> None:
    (done,) = answers(constant(text), max_tokens=10)
    assert done.text is not None
    done.text.encode()


def test_a_choice_depends_on_the_requests_seed_alone() -> None:
    first = [done.text for done in answers(choice(["x", "y", "z"]), 300)]
    assert first == [done.text for done in answers(choice(["x", "y", "z"]), 300)]
    assert min(Counter(first).values()) > 60  # 100 are expected, with a standard deviation of 8


def test_a_replay_gives_each_agent_its_words_in_order() -> None:
    script = replay({"a_0": ["one", "two"]})
    assert [done.text for done in answers(script, 2)] == ["one", "two"]
    with pytest.raises(IndexError):
        answers(script)


def test_a_script_gets_the_agent_and_its_observation() -> None:
    engine = ScriptedEngine({"p": lambda agent, observation, rng: f"{agent} {observation.text}"})
    seen = Observation(text="a card")
    engine.add(
        Request(
            id=3, policy="p", prompt_ids=(), seed=0, max_tokens=9, agent="b_1", observation=seen
        )
    )
    (done,) = engine.step()
    assert (done.id, done.text) == (3, "b_1 a car")
    assert engine.step() == []


def test_unknown_policies_and_training_are_refused() -> None:
    engine = ScriptedEngine({"first": constant("x")})
    with pytest.raises(ConfigError, match="did you mean 'first'"):
        engine.add(Request(id=0, policy="frist", prompt_ids=(), seed=0, max_tokens=1))
    with pytest.raises(ConfigError, match="cannot be trained"):
        engine.publish("first", {}, 1)
