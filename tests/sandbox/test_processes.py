"""Tests of the executor's processes: lost ones are replaced, all end, none keeps data of runs."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from selfplay.sandbox import Call, Executor, FailureReason, IsolationError, Outcome
from selfplay.sandbox import dispatcher as dispatcher_module
from selfplay.sandbox import process as worker_module
from tests.helpers.repository import ROOT
from tests.helpers.sandbox_attacks import isolated, run


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with isolated(workers=1, wall_seconds=10.0, cpu_seconds=5.0) as pool:
        yield pool


def _hosts(pool: Executor, lane: int | None = None) -> list[int]:
    assert pool._dispatcher is not None
    workers = pool._dispatcher._workers
    return [worker._process.pid for place, worker in workers if lane in (None, place)]


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _gone(pids: list[int], seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        return []
    return [int(p) for p in text.split()]


def test_nothing_of_a_run_stays_in_the_memory_that_the_next_inherits() -> None:
    marks = [f"{word}{os.getpid()}mark".encode() for word in ("program", "argument", "result")]
    # No request contains the mark of the result; the program builds it.
    program = f"def f(x):\n    # {marks[0].decode() * 50}\n    return ('result' + x[8:]) * 50"
    with Executor(workers=1) as pool:
        for size in (1, 20, 100, 1000):
            run(pool, program, repr(marks[1].decode() * size), runs=2)
        for inner in (inner for pid in _hosts(pool) for inner in _children(pid)):
            found = 0
            try:
                with (
                    open(f"/proc/{inner}/maps", encoding="ascii") as maps,
                    open(f"/proc/{inner}/mem", "rb", buffering=0) as memory,
                ):
                    for line in maps:
                        area, rights = line.split()[:2]
                        if rights.startswith("rw") and "[v" not in line:
                            start, end = (int(text, 16) for text in area.split("-"))
                            memory.seek(start)
                            content = memory.read(end - start)
                            found += len(content)
                            assert not any(mark in content for mark in marks), line
            except PermissionError:
                pytest.skip("only root can read the memory of an isolated process")
            assert found > 1_000_000


def test_a_lost_process_is_replaced_and_its_runs_are_tried_again() -> None:
    with Executor(workers=1, wall_seconds=20.0) as pool:
        run(pool, "def f(): return 1")
        first = _hosts(pool)
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        calls = [Call(program=f"def f(): return {n}", arguments="") for n in range(20)]
        assert [o.value for o in pool.run(calls, runs=2)] == [str(n) for n in range(20)]
        assert not set(first) & set(_hosts(pool))


def test_a_run_is_not_forgotten_if_its_process_is_lost_while_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else happens in the pool, so no later event would send the run again."""
    send = worker_module.SandboxProcess.flush
    lost: list[bool] = []

    def flush(worker: worker_module.SandboxProcess[Any]) -> None:
        if not lost:
            lost.append(True)
            raise worker_module.LostError("its socket is closed")
        send(worker)

    with Executor(workers=1, wall_seconds=20.0) as pool:
        run(pool, "def f(): return 1")
        monkeypatch.setattr(worker_module.SandboxProcess, "flush", flush)
        outcomes: list[Outcome] = []
        caller = threading.Thread(
            target=lambda: outcomes.append(run(pool, "def f(): return 2")), daemon=True
        )
        caller.start()
        caller.join(60)
        assert lost and [outcome.value for outcome in outcomes] == ["2"]


def test_a_run_whose_process_is_lost_twice_is_killed() -> None:
    with Executor(workers=1, wall_seconds=60.0) as pool:
        run(pool, "def f(): return 1")
        outcomes: list[Outcome] = []
        slow = Call(program="import time\ndef f(): time.sleep(50)", arguments="")
        quick = [Call(program=f"def f(): return {n}", arguments="") for n in range(6)]
        caller = threading.Thread(target=lambda: outcomes.extend(pool.run([slow, *quick])))
        caller.start()
        seen: set[int] = set()
        end = time.monotonic() + 60
        while len(seen) < 2 and time.monotonic() < end:
            # The slow run is the first in its lane until its process is lost a second time.
            for pid in {*_hosts(pool, lane=0)} - seen:
                inner = _children(pid) if _alive(pid) else []
                if inner and _children(inner[0]):  # it is running something
                    seen.add(pid)
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        caller.join(60)
        assert outcomes[0].reason is FailureReason.KILLED, outcomes
        assert outcomes[0].detail.endswith("ended twice while it ran this one")
        assert [o.value for o in outcomes[1:]] == [str(n) for n in range(6)]
        assert not seen & set(_hosts(pool))


def test_an_answered_run_ends_if_a_lost_process_cannot_be_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lost process cannot be replaced, so the executor ends before it handles the reply."""
    receive = worker_module.SandboxProcess.receive
    left = worker_module.SandboxProcess.seconds_left.fget  # type: ignore[attr-defined]
    answered: list[Any] = []

    def received(worker: worker_module.SandboxProcess[Any]) -> list[tuple[Any, bytes]]:
        answered.extend(done := receive(worker))
        return done

    def over(worker: worker_module.SandboxProcess[Any]) -> float:
        return 0.0 if answered else left(worker)

    def refuse(worker: worker_module.SandboxProcess[Any]) -> None:
        worker.close()
        raise IsolationError("no process starts any more")

    with Executor(workers=1, wall_seconds=20.0) as pool:
        run(pool, "def f(): return 1")
        monkeypatch.setattr(worker_module.SandboxProcess, "receive", received)
        monkeypatch.setattr(worker_module.SandboxProcess, "seconds_left", property(over))
        monkeypatch.setattr(worker_module.SandboxProcess, "wait", refuse)
        raised: list[BaseException] = []

        def ask() -> None:
            try:
                run(pool, "def f(): return 2")
            except IsolationError as error:
                raised.append(error)

        caller = threading.Thread(target=ask, daemon=True)
        caller.start()
        caller.join(60)
        assert answered and [str(error) for error in raised] == ["no process starts any more"]


def test_a_process_that_does_not_start_in_time_is_one_line(
    monkeypatch: pytest.MonkeyPatch, executor: Executor
) -> None:
    monkeypatch.setattr(worker_module, "START_SECONDS", 1e-6)
    with Executor(workers=1) as pool, pytest.raises(IsolationError) as caught:
        run(pool, "def f(): return 1")
    assert str(caught.value) == (
        "executor: the sandbox process did not answer within 1e-06 s; the machine may be too busy; "
        "start the run again"
    )


def test_a_process_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[int] = []
    left = worker_module.SandboxProcess.seconds_left.fget  # type: ignore[attr-defined]

    def sooner(worker: worker_module.SandboxProcess[Any]) -> float:
        """Return 29.5 s less for stopped processes; others keep the time for a busy machine."""
        seconds: float = left(worker)
        return seconds - 29.5 if worker._process.pid in stopped else seconds

    monkeypatch.setattr(worker_module.SandboxProcess, "seconds_left", property(sooner))
    with Executor(workers=1, wall_seconds=20.0) as pool:
        run(pool, "def f(): return 1")
        stopped += _hosts(pool)
        for pid in stopped:
            for inner in _children(pid):
                os.kill(inner, signal.SIGSTOP)
        assert run(pool, "def f(): return 2", runs=2).value == "2"


def test_closing_ends_all_processes_and_waiting_calls() -> None:
    pool = Executor(workers=2, wall_seconds=60.0)
    run(pool, "def f(): return 1")
    pids = _hosts(pool)
    inner = [inner for pid in pids for inner in _children(pid)]
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            run(pool, "import time\ndef f(): time.sleep(50)")
        except dispatcher_module.ClosedError as error:
            raised.append(error)

    caller = threading.Thread(target=ask)
    caller.start()
    end = time.monotonic() + 60
    assert pool._dispatcher is not None
    while not any(worker.jobs for _, worker in pool._dispatcher._workers):
        assert time.monotonic() < end
        time.sleep(0.01)
    pool.close()
    caller.join(60)
    assert raised and _gone([*pids, *inner])


SCRIPT = """
import os, signal, sys, time
from selfplay.sandbox import Call, Executor
executor = Executor(workers=1, wall_seconds=60.0)
value = executor.run([Call(program="def f(): return 1", arguments="")])[0].value
print(value, *[w._process.pid for _, w in executor._dispatcher._workers], flush=True)
sys.stdin.readline()  # continues after the test has counted its processes
"""


def _script(text: str, **options: Any) -> tuple[subprocess.Popen, list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )
    assert process.stdout is not None and process.stdin is not None
    value, *hosts = map(int, process.stdout.readline().split())
    assert value == 1
    pids = hosts + [inner for pid in hosts for inner in _children(pid)]
    process.stdin.close()
    return process, pids


def test_nothing_outlives_an_interpreter_that_forgot_to_close(executor: Executor) -> None:
    process, pids = _script(SCRIPT)
    assert process.wait(300) == 0
    assert _gone(pids)


def test_nothing_outlives_a_parent_that_is_killed(executor: Executor) -> None:
    busy = "executor.run([Call(program='import time\\ndef f(): time.sleep(50)', arguments='')])\n"
    process, pids = _script(SCRIPT + busy)
    time.sleep(0.2)
    process.kill()
    process.wait()
    assert _gone(pids)


def test_a_fork_of_the_parent_starts_its_own(executor: Executor) -> None:
    text = SCRIPT + (
        "pid = os.fork()\n"
        "value = executor.run([Call(program='def f(): return 2', arguments='')])[0].value\n"
        "executor.close()\n"
        "ok = value == '2'\n"
        "os._exit(0 if ok else 1) if pid == 0 else None\n"
        "ok = ok and os.waitpid(pid, 0)[1] == 0\n"
        "sys.exit(0 if ok else 1)\n"
    )
    process, pids = _script(text)
    assert process.wait(300) == 0
    assert _gone(pids)
