"""Engines of an endpoint on loopback, and their completions."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from selfplay.engines.messages import MessageRenderer
from selfplay.engines.openai import OpenAIEngine
from selfplay.types import Completion, Request

KEY = "sk-very-secret"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set a key, and shorten the pauses between attempts."""
    pytest.importorskip("openai", reason="needs selfplay[openai]")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.02)
    yield


def engine(url: str, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(**{"model": "judge", "base_url": url, "timeout": 60.0, **settings})


def request(number: int = 0, text: str = "Who won?", **fields: Any) -> Request:
    ids = MessageRenderer().start([{"role": "user", "content": text}])
    given: dict[str, Any] = {"seed": 2**40 + number, "max_tokens": 7, "temperature": 0.5, **fields}
    return Request(id=number, policy="judge", prompt_ids=ids, **given)


def answers(asked: OpenAIEngine, *requests: Request) -> dict[int, Completion]:
    for each in requests:
        asked.add(each)
    found: list[Completion] = []
    end = time.monotonic() + 120
    try:
        while len(found) < len(requests):
            assert time.monotonic() < end, "the engine hangs"
            found += asked.step()
    finally:
        asked.close()
    return {completion.id: completion for completion in found}
