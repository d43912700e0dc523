"""Tests of a loop shared by several threads: its driver, joining calls, and errors."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from selfplay.rollout.shared_loop import SharedLoop
from tests.helpers.prefetched_batches import LONG, until


class Rounds:
    """Work whose calls end when the test decides; it records the loop's steps and threads."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.drivers: set[str] = set()
        self.active: list[str] = []
        self.over: set[str] = set()
        self.alone: set[str] = set()
        self.error: Exception | None = None

    def begin(self) -> None:
        self.log.append("begin")

    def admits(self, call: str) -> bool:
        return call not in self.alone

    def admit(self, call: str) -> None:
        self.log.append(call)
        self.active.append(call)

    def advance(self) -> list[str]:
        self.drivers.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        threading.Event().wait(0.001)
        ended = [call for call in self.active if call in self.over]
        self.active = [call for call in self.active if call not in ended]
        return ended

    def end(self) -> None:
        self.log.append("end")
        self.active = []


Start = Callable[[str], "Future[None]"]


@pytest.fixture
def work() -> Rounds:
    return Rounds()


@pytest.fixture
def start(work: Rounds) -> Iterator[Start]:
    loop = SharedLoop(work)
    with ThreadPoolExecutor(4) as pool:
        yield lambda call: pool.submit(loop.run, call)
        work.over |= {"a", "b", "c"}


def test_a_thread_that_is_alone_does_its_work_itself(work: Rounds) -> None:
    work.over = {"a", "b"}
    loop = SharedLoop(work)
    loop.run("a")
    loop.run("b")
    assert work.log == ["begin", "a", "end", "begin", "b", "end"]
    assert work.drivers == {threading.current_thread().name}


def test_a_joined_call_continues_after_the_call_of_the_driver_ends(
    work: Rounds, start: Start
) -> None:
    first = start("a")
    until(lambda: work.active == ["a"])
    second = start("b")
    until(lambda: work.active == ["a", "b"])
    work.over.add("a")
    first.result(LONG)
    until(lambda: len(work.drivers) == 2)
    assert not second.done()
    work.over.add("b")
    second.result(LONG)
    assert work.log == ["begin", "a", "b", "end"]


def test_a_later_call_may_end_first(work: Rounds, start: Start) -> None:
    first = start("a")
    until(lambda: work.active == ["a"])
    second = start("b")
    work.over.add("b")
    second.result(LONG)
    assert not first.done() and work.active == ["a"]


def test_a_call_that_may_not_join_begins_after_the_others(work: Rounds, start: Start) -> None:
    work.alone = {"b"}
    first = start("a")
    until(lambda: work.active == ["a"])
    second = start("b")
    third = start("c")
    work.over.add("a")
    first.result(LONG)
    until(lambda: "b" in work.active)
    assert work.log[:5] == ["begin", "a", "end", "begin", "b"]
    work.over |= {"b", "c"}
    second.result(LONG)
    third.result(LONG)


def test_an_error_ends_all_calls_and_the_loop_can_begin_again(work: Rounds, start: Start) -> None:
    calls = [start("a"), start("b")]
    until(lambda: len(work.active) == 2)
    work.error = ZeroDivisionError("oops")
    for call in calls:
        assert call.exception(LONG) is work.error
    assert work.log[-1] == "end"
    work.error, work.over = None, {"c"}
    start("c").result(LONG)
