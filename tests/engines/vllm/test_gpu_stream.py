"""Tests that threads that step one engine use one stream, without a GPU and without vLLM."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfplay.engines.vllm.core import EngineCore
from selfplay.engines.vllm.served_policies import ServedPolicies, ServedPolicy
from tests.helpers.vllm_engine import make


class Stream:
    """A stream that records what it waits for."""

    def __init__(self, log: list[Any], name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, other: "Stream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class Streams:
    """The streams of a GPU; each thread has its own stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[Any] = []
        self._chosen = threading.local()
        monkeypatch.setattr(torch.cuda, "current_stream", self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.use)

    def current(self) -> Stream:
        if not hasattr(self._chosen, "stream"):
            self._chosen.stream = Stream(self.log, threading.current_thread().name)
        stream: Stream = self._chosen.stream
        return stream

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        before = self.current()
        self._chosen.stream = stream
        yield
        self._chosen.stream = before

    def compute(self, what: str) -> None:
        self.log.append(f"{what} on {self.current().name}")


def started(streams: Streams) -> ServedPolicies:
    """Return the policies of an engine that this thread started and that has a request."""

    def step() -> list[Any]:
        streams.compute("step")
        return []

    scheduler = SimpleNamespace(max_num_seqs=0)
    core: Any = object.__new__(EngineCore)
    core.stream, core._running, core._finished = streams.current(), 1, []
    core.engine = SimpleNamespace(
        step=step, vllm_config=SimpleNamespace(scheduler_config=scheduler)
    )
    return ServedPolicies(core, rank=None)


def in_thread(name: str, called: Any) -> None:
    thread = threading.Thread(target=called, name=name)
    thread.start()
    thread.join()


def test_a_step_of_any_thread_is_on_the_stream_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = Streams(monkeypatch)
    streams.current().name = "first"
    group = started(streams)
    group.step()
    in_thread("second", group.step)
    assert streams.log == [
        "step on first",
        "first waits for second",
        "step on first",
        "second waits for first",
    ]


def test_a_load_of_weights_is_on_the_stream_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    streams.current().name = "first"
    group = started(streams)
    group.host._running = 0
    served = ServedPolicy("p", make(layers=1), [], tolerance=1.0)
    monkeypatch.setattr(group, "_load", lambda served: streams.compute("load"))
    in_thread("second", lambda: group.enter(served))
    served.folder.cleanup()
    assert streams.log == ["first waits for second", "load on first", "second waits for first"]
