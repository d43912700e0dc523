"""Tests of the engine of remote endpoints with an endpoint on loopback: requests and failures."""

import json
import socket
import threading
from typing import Any

import pytest

from arenas.games.kuhn import Kuhn
from roles.player import Player
from selfplay.engines.messages import MessageRenderer, read
from selfplay.errors import ConfigError, RunError
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Message, Status, StopReason, Task
from tests.helpers.chat_endpoint import failure, serving, words
from tests.helpers.endpoint_engine import KEY, answers, engine, quick, request

__all__ = ["quick"]


def test_the_fields_of_a_request_and_of_its_completion() -> None:
    with serving(lambda number, body: words("the affirmative", finish="length")) as endpoint:
        asked = engine(endpoint.url, options={"top_p": 0.9}, price={"prompt": 2.0, "completion": 8})
        completion = answers(asked, request())[0]
    (body,) = endpoint.asked
    assert body["path"] == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "Who won?"}]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("judge", 7, 0.5)
    assert body["top_p"] == 0.9 and body["seed"] == 0
    assert endpoint.keys == [f"Bearer {KEY}"]
    assert completion.text == "the affirmative" and completion.stop_reason is StopReason.LENGTH
    assert bytes(completion.completion_ids).decode() == "the affirmative"
    assert completion.logprobs == (0.0,) * len(completion.completion_ids)
    # 10 prompt tokens at 2 dollars per million, 5 completion tokens at 8: 60 millionths.
    counts = asked.drain_metrics()
    assert counts["dollars"] == pytest.approx(60e-6)
    assert (counts["requests"], counts["retries"]) == (1, 0)
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (10, 5)
    assert asked.drain_metrics() == {}


def test_sampling_settings_of_the_role_are_sent_and_the_opponents_own_win() -> None:
    stop = ("END", "stop")
    with serving(lambda number, body: words("yes", finish="stop")) as endpoint:
        for each in (request(top_p=0.8, stop=stop), request()):
            answers(engine(endpoint.url), each)
        own = engine(endpoint.url, options={"top_p": 0.7, "top_k": 5, "min_p": 0.1})
        answers(own, request(top_p=0.8, top_k=9, min_p=0.2))
    first, second, third = endpoint.asked
    assert (first["top_p"], first["stop"]) == (0.8, list(stop))
    assert not {"top_p", "top_k", "min_p", "stop"} & set(second)
    assert (third["top_p"], third["top_k"], third["min_p"]) == (0.7, 5, 0.1)


@pytest.mark.parametrize("setting", ["top_k", "min_p"])
def test_a_sampling_setting_that_the_api_lacks_is_refused(setting: str) -> None:
    asked = engine("http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match=f"'judge': OpenAI's API has no {setting}; set opt"):
        limits: dict[str, Any] = {setting: 1}
        asked.add(request(**limits))
    asked.close()


def test_a_text_is_cut_at_a_stop_string_that_the_endpoint_ignored() -> None:
    with serving(lambda number, body: words("<a>yes</a> no", finish="length")) as endpoint:
        kept = answers(engine(endpoint.url), request(stop=("</a>",), keep_stop=True))[0]
        cut = answers(engine(endpoint.url), request(stop=("</a>",)))[0]
    assert "stop" not in endpoint.asked[0] and endpoint.asked[1]["stop"] == ["</a>"]
    assert (kept.text, cut.text) == ("<a>yes</a>", "<a>yes")
    assert kept.stop_reason is cut.stop_reason is StopReason.STOP
    assert bytes(cut.completion_ids).decode() == cut.text


def test_stop_strings_that_are_too_many_for_the_api_cut_the_text_here() -> None:
    stop = ("a1", "b2", "c3", "d4", "e5", "f6")
    with serving(lambda number, body: words("one e5 two f6", finish="length")) as endpoint:
        done = answers(engine(endpoint.url), request(stop=stop))[0]
    assert endpoint.asked[0]["stop"] == list(stop[:4])
    assert done.text == "one " and done.stop_reason is StopReason.STOP


def test_an_engine_is_awaiting_until_it_has_all_answers() -> None:
    with serving(lambda number, body: words("yes")) as endpoint:
        asked = engine(endpoint.url)
        assert not asked.awaiting
        asked.add(request())
        assert asked.awaiting
        while not asked.step():
            assert asked.awaiting
        assert not asked.awaiting
        asked.close()


def test_a_conversation_is_sent_whole() -> None:
    renderer = MessageRenderer()
    first: list[Message] = [
        {"role": "system", "content": "Judge."},
        {"role": "user", "content": "é"},
    ]
    start = renderer.start(first)
    said = tuple("yes ∑".encode())
    extended = renderer.extend(start, said, [{"role": "user", "content": "Sure?"}])
    assert read(extended) == [
        *first,
        {"role": "assistant", "content": "yes ∑"},
        {"role": "user", "content": "Sure?"},
    ]


def test_requests_run_at_the_same_time_up_to_the_limit() -> None:
    meet = threading.Barrier(3, timeout=60)

    def together(number: int, body: dict[str, Any]) -> tuple[int, str]:
        meet.wait()  # no request is answered before three have arrived
        return words(body["messages"][0]["content"].upper())

    with serving(together) as endpoint:
        asked = engine(endpoint.url, concurrency=3)
        found = answers(asked, *(request(number, f"word {number}") for number in range(6)))
    assert endpoint.most == 3
    assert {number: c.text for number, c in found.items()} == {n: f"WORD {n}" for n in range(6)}


def test_failed_requests_are_retried_and_counted() -> None:
    def succeed_at_last(number: int, body: dict[str, Any]) -> tuple[int, str] | None:
        return (failure(500, "oops"), failure(429, "slow down"), None, words("yes"))[number]

    with serving(succeed_at_last) as endpoint:
        asked = engine(endpoint.url)
        assert answers(asked, request())[0].text == "yes"
        assert len(endpoint.asked) == 4
    assert asked.drain_metrics()["retries"] == 3


@pytest.mark.parametrize(
    "reply",
    [
        words(None),
        words(["parts"]),
        (200, "<html>"),
        (200, "[]"),
        (200, "null"),
        (200, '{"choices": []}'),
        (200, '{"choices": {"0": 1}}'),
        (200, '{"choices": [{"message": null}]}'),
    ],
)
def test_an_answer_without_words_is_an_empty_one(reply: tuple[int, str]) -> None:
    with serving(lambda number, body: reply) as endpoint:
        asked = engine(endpoint.url)
        completion = answers(asked, request())[0]
    assert completion.text == "" and completion.completion_ids == ()
    assert asked.drain_metrics()["malformed"] == 1


@pytest.mark.parametrize("usage", [[], "many", {"prompt_tokens": "ten"}, {}])
def test_a_wrong_count_of_tokens_harms_nothing(usage: Any) -> None:
    with serving(lambda number, body: words("a \ud800 b", usage=usage)) as endpoint:
        asked = engine(endpoint.url, price={"prompt": 1.0})
        assert answers(asked, request())[0].text == "a � b"
    assert asked.drain_metrics()["dollars"] == 0.0


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (failure(401, f"wrong key {KEY}"), r"refuses the key in OPENAI_API_KEY .*wrong key \*\*\*"),
        (failure(404, "no such model"), "does not know the model 'judge'"),
        (failure(500, "on fire"), r"failed 2 attempt\(s\) .*on fire"),
        (failure(400, "none such"), r"refuses the request \(.*none such.*check limit_key"),
        (None, r"cannot be reached in 2 attempt\(s\)"),
    ],
)
def test_an_unusable_endpoint_gives_an_error_of_one_line(
    reply: tuple[int, str] | None, complaint: str
) -> None:
    with (
        serving(lambda number, body: reply) as endpoint,
        pytest.raises(RunError, match=complaint) as caught,
    ):
        answers(engine(endpoint.url, retries=1), request(0), request(1))
    assert KEY not in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


@pytest.mark.parametrize(
    "reply",
    [
        (400, json.dumps({"error": {"message": "no", "code": "context_length_exceeded"}})),
        failure(400, "This model's maximum context length is 100 tokens"),
        failure(413, "the request exceeds the available context size"),
    ],
)
def test_a_prompt_that_is_too_long_gives_an_empty_completion(reply: tuple[int, str]) -> None:
    """Even the first request of an engine may be too long."""
    with serving(lambda number, body: reply) as endpoint:
        asked = engine(endpoint.url)
        done = answers(asked, request())[0]
    assert "lower max_tokens of the role's sampling" in done.too_long_reason
    assert done.completion_ids == () and "\n" not in done.too_long_reason
    assert asked.drain_metrics() == {"requests": 1.0, "refused": 1.0}


def test_an_endpoint_that_is_silent_ends_at_its_timeout() -> None:
    silent = threading.Event()

    def hang(number: int, body: dict[str, Any]) -> tuple[int, str]:
        silent.wait(120)
        return words("too late")

    with serving(hang) as endpoint:
        try:
            with pytest.raises(RunError, match=r"no answer within 0\.2 s in 2 attempt"):
                answers(engine(endpoint.url, retries=1, timeout=0.2), request())
        finally:
            silent.set()


def test_an_address_without_a_server_is_a_clear_error() -> None:
    with socket.socket() as kept:  # no other process listens on this port
        kept.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{kept.getsockname()[1]}/v1"
        with pytest.raises(RunError, match=r"cannot be reached.*check base_url"):
            answers(engine(gone, retries=0), request())


def test_attempts_are_spaced_by_requests_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("selfplay.engines.openai.time.monotonic", lambda: 100.0)
    monkeypatch.setattr("selfplay.engines.openai.time.sleep", slept.append)
    asked = engine("http://127.0.0.1:9/v1", requests_per_minute=120)
    for _ in range(3):
        asked._wait_turn()
    assert slept == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"requests_per_minute": float("nan")}, "requests_per_minute"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"base_url": "http://me:word@host/v1"}, "user or password"),
        ({"options": {"model": "x"}}, r"options\.model"),
        ({"options": {"max_tokens": 1}}, r"options\.max_tokens"),
        ({"price": {"output": 1.0}}, r"price\.output"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        engine(**{"url": "http://127.0.0.1:9/v1", **settings})


def test_a_missing_key_is_reported_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigError, match="set the environment variable OPENAI_API_KEY"):
        engine("http://127.0.0.1:9/v1")
    engine("http://127.0.0.1:9/v1", key_variable=None).close()


def test_a_remote_policy_cannot_be_trained() -> None:
    with pytest.raises(ConfigError, match="cannot be trained"):
        engine("http://127.0.0.1:9/v1").publish("judge", {}, 1)


def test_a_game_against_an_endpoint() -> None:
    with serving(lambda number, body: words("bet")) as endpoint:
        remote = engine(endpoint.url)
        agent_spec = AgentSpec(role=Player(game="kuhn"), policy="remote", renderer=remote.renderer)
        rollout = Rollout(
            arena=Kuhn, agent_specs={"player": agent_spec}, engines={"remote": remote}
        )
        played = rollout.run([EpisodeSpec(task=Task(id="hand"), seed=seed) for seed in range(4)])
        remote.close()
    assert all(each.status is Status.FINISHED and not each.error for each in played)
    # Both players bet at once, so each hand has two turns; the record has the sent prompts.
    assert [turn.text for each in played for turn in each.turns] == ["bet"] * 8
    assert len(endpoint.asked) == 8
    prompts = [read(turn.prompt_ids) for each in played for turn in each.turns]
    asked = [body["messages"] for body in endpoint.asked]
    assert sorted(map(str, prompts)) == sorted(map(str, asked))


def test_a_refused_conversation_does_not_affect_answered_ones() -> None:
    too_long = failure(400, "maximum context length exceeded")
    with serving(lambda number, body: too_long if number else words("yes")) as endpoint:
        asked = engine(endpoint.url, concurrency=1)
        found = answers(asked, request(0), request(1))
    assert [found[n].text for n in (0, 1)] == ["yes", ""]
    assert asked.drain_metrics()["refused"] == 1


@pytest.mark.parametrize("usage", [{"completion_tokens": 10**400}, "[" * 3])
def test_a_huge_or_malformed_usage_does_not_break_the_engine(usage: Any) -> None:
    with serving(lambda number, body: words("yes", usage=usage)) as endpoint:
        assert answers(engine(endpoint.url), request())[0].text in ("yes", "")
