"""Tests of the runner of tool calls: few threads, time limits, threads that never return."""

import threading
import time

import pytest

from selfplay.tools import runner as module
from selfplay.tools.runner import MOST_STUCK, ToolRunner


def submit(runner: ToolRunner[int, str], key: int, work: object, seconds: float = 10.0) -> None:
    assert callable(work)
    runner.submit(
        key,
        name="tool",
        seconds=seconds,
        work=work,
        overdue=lambda: "overdue",
        stuck=lambda: "stuck",
    )


def collected(runner: ToolRunner[int, str], count: int) -> dict[int, str]:
    found: dict[int, str] = {}
    until = time.monotonic() + 10
    while len(found) < count and time.monotonic() < until:
        found |= dict(runner.collect(wait=0.1))
    return found


def test_successive_calls_share_threads() -> None:
    runner: ToolRunner[int, str] = ToolRunner(threads=4)
    used = set()
    for key in range(20):
        submit(runner, key, lambda: str(threading.get_ident()))
        used |= set(collected(runner, 1).values())
        time.sleep(0.002)  # a thread is free shortly after its result
    assert len(used) <= 4


def test_calls_at_once_have_a_thread_each_up_to_the_limit() -> None:
    runner: ToolRunner[int, str] = ToolRunner(threads=3)
    together = threading.Barrier(3)
    for key in range(9):
        submit(runner, key, lambda: str(together.wait(10.0)))
    assert set(collected(runner, 9)) == set(range(9))


def test_an_idle_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    runner: ToolRunner[int, str] = ToolRunner()
    for key in range(3):
        submit(runner, key, lambda: "done")
        assert collected(runner, 1) == {key: "done"}
        until = time.monotonic() + 10
        while runner._idle and time.monotonic() < until:
            time.sleep(0.005)
        assert runner._idle == 0


def test_a_call_that_hangs_is_left_alone_and_another_thread_takes_its_place() -> None:
    released = threading.Event()
    runner: ToolRunner[int, str] = ToolRunner(threads=1)
    try:
        for key in range(MOST_STUCK):
            # A busy machine must start the call's thread within the limit.
            submit(runner, key, lambda: str(released.wait(30.0)), seconds=0.25)
        assert collected(runner, MOST_STUCK) == dict.fromkeys(range(MOST_STUCK), "overdue")
        submit(runner, 100, lambda: "done")
        assert collected(runner, 1) == {100: "stuck"}
    finally:
        released.set()
    until = time.monotonic() + 10
    while runner._stuck["tool"] and time.monotonic() < until:
        time.sleep(0.005)
    submit(runner, 101, lambda: "done")
    assert collected(runner, 1) == {101: "done"}
