"""Tests of the engine of remote endpoints with vLLM's own server and a newly made model."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from arenas.games.kuhn import Kuhn
from roles.player import Player
from selfplay.engines.messages import MessageRenderer
from selfplay.engines.openai import OpenAIEngine
from selfplay.errors import RunError
from selfplay.models.renderer import ChatRenderer
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Completion, Message, Request, Status, StopReason, Task
from tests.helpers.builders import save_tiny

pytestmark = pytest.mark.vllm

STARTS = 600
"""Largest number of seconds that the start of the server may take."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden": 64, "layers": 2, "heads": 2, "intermediate": 96, "positions": 512}
    return save_tiny(tmp_path_factory.mktemp("model"), **sizes)


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a server of the model; kill all its processes after the tests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "model": str(folder),
        "served-model-name": "tiny",
        "host": "127.0.0.1",
        "port": str(port),
        "dtype": "float32",
        "max-model-len": "512",
        "max-num-seqs": "16",
        "kv-cache-memory-bytes": str(2**27),
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [word for name, value in settings.items() for word in (f"--{name}", value)]
    quiet = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            command, env={**os.environ, **quiet}, stdout=out, stderr=out, start_new_session=True
        )
        try:
            end = time.monotonic() + STARTS
            while not listens(f"http://127.0.0.1:{port}/health"):
                assert server.poll() is None and time.monotonic() < end, log.read_text()[-4000:]
                time.sleep(0.3)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def listens(health: str) -> bool:
    try:
        with urllib.request.urlopen(health, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def engine(url: str, **settings: Any) -> OpenAIEngine:
    given = {"model": "tiny", "base_url": url, "key_variable": None, "timeout": 120.0, "retries": 1}
    return OpenAIEngine(**{**given, **settings})


CHAT: list[Message] = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "Who won? \N{SNOWMAN}"},
]


def request(number: int = 0, chat: list[Message] = CHAT, **fields: Any) -> Request:
    ids = MessageRenderer().start(chat)
    given: dict[str, Any] = {"seed": 2**40 + number, "max_tokens": 12, **fields}
    return Request(id=number, policy="judge", prompt_ids=ids, **given)


def answers(asked: OpenAIEngine, *requests: Request) -> dict[int, Completion]:
    for each in requests:
        asked.add(each)
    found: list[Completion] = []
    end = time.monotonic() + 300
    while len(found) < len(requests):
        assert time.monotonic() < end, "the engine hangs"
        found += asked.step()
    return {completion.id: completion for completion in found}


def test_greedy_answers_are_those_of_the_model(url: str, folder: Path) -> None:
    asked = engine(url, price={"prompt": 1.0, "completion": 2.0})
    (said,) = answers(asked, request(temperature=0.0)).values()
    renderer = ChatRenderer(AutoTokenizer.from_pretrained(folder))
    prompt = torch.tensor([renderer.start(CHAT)])
    generate: Any = AutoModelForCausalLM.from_pretrained(folder).eval().generate
    out = generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=12,
        eos_token_id=list(renderer.end_ids),
        pad_token_id=0,
    )
    ids = out[0, prompt.shape[1] :].tolist()
    assert said.text == renderer.text(ids)
    cut = ids[-1] not in renderer.end_ids
    assert said.stop_reason is (StopReason.LENGTH if cut else StopReason.STOP)
    counts = asked.drain_metrics()
    assert counts["prompt_tokens"] == prompt.shape[1]
    assert counts["completion_tokens"] == len(ids)
    assert counts["dollars"] == pytest.approx((prompt.shape[1] + 2 * len(ids)) / 1e6)


def test_a_seed_gives_the_same_answer_again_next_to_other_requests(url: str) -> None:
    asked = engine(url)
    first = answers(asked, *(request(number) for number in range(12)))
    again = answers(asked, *(request(number) for number in reversed(range(12))))
    assert {n: done.text for n, done in first.items()} == {n: d.text for n, d in again.items()}
    assert len({done.text for done in first.values()}) > 6
    assert asked.drain_metrics()["requests"] == 24


def test_a_conversation_that_is_too_long_is_refused_alone(url: str) -> None:
    asked = engine(url)
    answers(asked, request())
    long: list[Message] = [{"role": "user", "content": "far too long " * 100}]
    found = answers(asked, request(0, long), request(1))
    assert found[0].text == "" and found[1].completion_ids
    assert asked.drain_metrics()["refused"] == 1


def test_an_unknown_model_ends_the_run_in_one_line(url: str) -> None:
    with pytest.raises(RunError, match="does not know the model 'huge'") as caught:
        answers(engine(url, model="huge"), request())
    assert "\n" not in str(caught.value)


def test_a_game_against_the_server(url: str) -> None:
    remote = engine(url)
    agent_spec = AgentSpec(
        role=Player(game="kuhn"), policy="remote", renderer=remote.renderer, max_tokens=8
    )
    rollout = Rollout(arena=Kuhn, agent_specs={"player": agent_spec}, engines={"remote": remote})
    played = rollout.run([EpisodeSpec(task=Task(id="hand"), seed=seed) for seed in range(4)])
    remote.close()
    assert all(each.status is Status.FINISHED and not each.error for each in played)
    assert all(turn.completion_ids for each in played for turn in each.turns)
