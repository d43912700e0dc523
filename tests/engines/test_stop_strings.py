"""Tests of stop strings: they end a completion and cut its text, but all sampled ids stay."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from transformers import PreTrainedModel

from selfplay.engines.stop_strings import StopMatcher, cut
from selfplay.errors import ConfigError
from selfplay.models.renderer import ByteRenderer, ChatRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.types import Request, StopReason, Turn
from tests.helpers.engine_requests import answer, serving
from tests.rollout.test_rollout import Talk, spec


def request(stop: Sequence[str], number: int = 0, **settings: object) -> Request:
    given = Request(id=number, policy="p", prompt_ids=(5, 6, 7), seed=number, max_tokens=40)
    return replace(given, stop=tuple(stop), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stop", "keep", "wanted"),
    [
        ((), False, "one two three"),
        (("four",), False, "one two three"),
        (("two",), False, "one "),
        (("two",), True, "one two"),
        (("three", "two"), False, "one "),
        (("two three", "two"), True, "one two three"),
        (("two", "two three"), True, "one two"),
        (("one",), False, ""),
    ],
)
def test_the_text_is_cut_at_the_first_stop_string(
    stop: tuple[str, ...], keep: bool, wanted: str
) -> None:
    assert cut("one two three", stop, keep=keep) == wanted


@pytest.mark.parametrize("stop", [["</a>"], ["\n\n"], ["é"], ["x" * 70], ["ab", "ba"], ["never"]])
def test_a_matcher_ends_at_the_token_that_completes_a_stop_string(stop: list[str]) -> None:
    """Decoding only the last tokens must find the same end as decoding all tokens."""
    renderer, rng = ByteRenderer(), Random(repr(stop))
    ended = 0
    for _ in range(100):
        words = [*stop, "a", "b", " ", "\n", "<", "/", "é", "x", "日本"]
        text = "".join(rng.choice(words) for _ in range(rng.randrange(200)))
        ids = list(text.encode())
        matcher = StopMatcher(request(stop, decode=renderer.text))
        whole = [any(s in renderer.text(ids[: n + 1]) for s in stop) for n in range(len(ids))]
        first = whole.index(True) if any(whole) else None
        found = next((n for n, token in enumerate(ids) if matcher.ends(token)), None)
        assert found == first
        assert (matcher.found in stop) is (first is not None)
        ended += first is not None
    assert ended > 20


def test_only_the_last_tokens_are_decoded_again() -> None:
    decoded = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return bytes(ids).decode()

    matcher = StopMatcher(request(["stop"], decode=decode))
    assert not any(matcher.ends(ord("a")) for _ in range(5000))
    assert decoded < 5000 * 100


def test_a_part_that_decodes_differently_is_checked_against_the_whole() -> None:
    """Some tokenizers drop a leading space when they decode a part of the tokens."""

    def decode(ids: Sequence[int]) -> str:
        return bytes(ids).decode().removeprefix(" ")

    text = "b" + " a" * 60 + "stop"
    matcher = StopMatcher(request(["as"], decode=decode))
    assert not any(matcher.ends(ord(each)) for each in text[:-4])
    assert [matcher.ends(ord(each)) for each in text[-4:]] == [True] * 4


def test_the_embedded_engine_ends_where_the_text_has_a_stop_string(
    model: PreTrainedModel, renderer: ChatRenderer
) -> None:
    engine = serving({"p": model}, {"p": renderer.end_ids})
    plain = [request((), number) for number in range(60)]
    free = answer(engine, plain)
    texts = [renderer.text(done.completion_ids) for done in free.values()]
    stop = sorted({text[5:7] for text in texts if len(text) > 12})[:6]
    assert len(stop) == 6
    limits: dict[str, Any] = {"stop": tuple(stop), "decode": renderer.text}
    # A third of the requests have no stop strings.
    asked = [replace(each, **limits) if each.id % 3 else each for each in plain]
    found = answer(engine, asked)
    shortened = 0
    for each in asked:
        whole, done = free[each.id].completion_ids, found[each.id]
        ends = [
            count
            for count in range(1, len(whole) + 1)
            if any(s in renderer.text(whole[:count]) for s in each.stop)
        ]
        length = ends[0] if ends else len(whole)
        assert done.completion_ids == whole[:length]
        assert len(done.logprobs) == length
        assert done.stop_reason is (StopReason.STOP if ends else free[each.id].stop_reason)
        shortened += length < len(whole)
    assert shortened > 5


def test_a_request_that_cannot_be_decoded_is_refused(
    model: PreTrainedModel, renderer: ChatRenderer
) -> None:
    engine = serving({"p": model}, {"p": renderer.end_ids})
    engine.add(request(["x"]))
    with pytest.raises(ConfigError, match="policy 'p': a request with stop strings needs `decode`"):
        engine.step()


@pytest.mark.parametrize("keep", [False, True])
def test_a_role_reads_the_cut_text_and_the_ids_stay(
    model: PreTrainedModel, renderer: ChatRenderer, keep: bool
) -> None:
    def play(**limits: object) -> list[str]:
        agent_spec = AgentSpec(role=Role(), policy="p", renderer=renderer, max_tokens=30, **limits)  # type: ignore[arg-type]
        engines = {"p": serving({"p": model}, {"p": renderer.end_ids})}
        playing = Rollout(
            arena=Talk, agent_specs={"a": agent_spec, "b": agent_spec}, engines=engines
        )
        turns = [turn for each in playing.run([spec(n) for n in range(20)]) for turn in each.turns]
        for turn in turns:
            assert turn.loss_mask == (1,) * len(turn.completion_ids)
            assert turn.action == turn.text
            whole = renderer.text(turn.completion_ids)
            assert turn.text == cut(whole, agent_spec.stop, keep=keep)
            if turn.text != whole or any(map(turn.text.endswith, agent_spec.stop)):
                assert turn.stop_reason is StopReason.STOP
                stopped.append(turn.text)
        return [turn.text for turn in turns]

    stopped: list[str] = []
    texts = play()
    stop = tuple(sorted({text[3] for text in texts if len(text) > 8})[:4])
    stopped.clear()
    found = play(stop=stop, keep_stop=keep)
    assert len(stopped) > 5 and found != texts
    assert any(any(s in text for s in stop) for text in found) is keep


@pytest.mark.parametrize("stop", ["\n", ">", "<think>"])
def test_only_sampled_text_is_searched(
    model: PreTrainedModel, renderer: ChatRenderer, stop: str
) -> None:
    """The text of every completion begins with the tag that the generation prompt opened."""
    tokenizer = copy.deepcopy(renderer.tokenizer)
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    opened = ChatRenderer(tokenizer)

    def play(*stop: str) -> list[Turn]:
        agent_spec = AgentSpec(role=Role(), policy="p", renderer=opened, max_tokens=30, stop=stop)
        playing = Rollout(
            arena=Talk,
            agent_specs=dict.fromkeys("ab", agent_spec),
            engines={"p": serving({"p": model}, {"p": opened.end_ids})},
        )
        return [turn for each in playing.run([spec(n) for n in range(8)]) for turn in each.turns]

    free = [turn.text.removeprefix("<think>\n") for turn in play() if turn.stage == 0]
    found = [turn.text for turn in play(stop) if turn.stage == 0]
    assert found == ["<think>\n" + cut(text, [stop]) for text in free]
    assert max(map(len, found)) > 15
