"""Tests of the limits of memory, processor time and wall-clock time."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest

from selfplay.sandbox import Call, Executor, FailureReason
from tests.helpers.sandbox_attacks import attack, isolated


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with isolated(workers=1, wall_seconds=60.0, cpu_seconds=0.4, output_characters=2_000) as pool:
        yield pool


@pytest.fixture(scope="module")
def patient() -> Iterator[Executor]:
    """Yield an executor with a large time limit, so that the memory limit ends a run first."""
    with isolated(workers=1, wall_seconds=60.0, cpu_seconds=20.0) as pool:
        yield pool


MEMORY = {
    "string": "return len('x' * 10**9)",
    "list": "return len([0] * 10**10)",
    "growing": "x = [0]\nwhile True: x += x",
    "bytes": "return bytearray(1 << 40)",
    "map": "import mmap\nreturn len(mmap.mmap(-1, 1 << 30))",
    "number": "return 1 << (1 << 36)",
    "a gigabyte as the result": "return 'x' * 10**9",
    "compressed": "import zlib\nreturn len(zlib.decompress(zlib.compress(bytes(10**7))) * 99)",
    "precision": (
        "import decimal\ndecimal.getcontext().prec = 10**9\nreturn str(decimal.Decimal(1) / 3)"
    ),
    "width": "return len('{:>999999999}'.format(1))",
    "exceptions": "return [ValueError() for _ in range(10**8)]",
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_capped(patient: Executor, name: str) -> None:
    assert attack(patient, MEMORY[name]).reason is FailureReason.MEMORY


LOOPS = {
    "loop": "while True: pass",
    "loop that catches": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    ),
    "sum": "return sum(range(10**12))",
    "power": "return 3 ** 10**8 % 7",
    "regular expression": "import re\nreturn re.match('(a+)+$', 'a' * 60 + 'b')",
    "consumed forever": "import collections, itertools\ncollections.deque(itertools.count(), 0)",
    "sort": "return sorted(range(10**6), key=lambda x: sum(range(10**6)))",
    "signals blocked": """
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        while True: pass
    """,
    "printing": "while True: print('x' * 10**6, flush=True)",
    "text of an exception": """
        class Error(Exception):
            def __str__(self) -> None:
                while True: pass
        raise Error
    """,
    "at import": "while True: pass\ndef f(): pass",
    "endless finalizer": """
        class Final:
            def __del__(self) -> None:
                while True: pass
        def f():
            Final()
    """,
    "factorial": "import math\nreturn math.factorial(10**7) % 7",
    "tower of powers": "return 9**9**9 % 2",
    "product": "import itertools\nreturn sum(1 for _ in itertools.product(range(99), repeat=9))",
    "another regular expression": "import re\nreturn re.match('(.*)*x', 'a' * 40)",
    "lambda without a limit": (
        "import sys\nsys.setrecursionlimit(10**8)\ng = lambda n: g(n + 1) if n < 10**9 else 0\n"
        "while True:\n    try: g(10**9)\n    except BaseException: pass"
    ),
    "result pipe closed": "import os\nos.close(3)\nwhile True: pass",
}


@pytest.mark.parametrize("name", LOOPS)
def test_processor_time_is_capped(executor: Executor, name: str) -> None:
    outcome = attack(executor, LOOPS[name])
    assert (
        outcome.reason is FailureReason.TIMEOUT and outcome.detail == "more than 0.4 s of CPU time"
    )


@pytest.mark.parametrize(
    "body",
    [
        "import time\ntime.sleep(99)",
        "import select\nselect.select([], [], [])",
        "import os, time\nos.closerange(0, 99)\ntime.sleep(99)",
        "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    ],
)
def test_wall_time_is_capped(body: str) -> None:
    with Executor(workers=1, wall_seconds=0.3) as impatient:
        # On a busy machine some runs take longer than 0.3 s, but not all.
        quick = (impatient.run([Call(program="def f(): pass", arguments="")]) for _ in range(50))
        assert any(outcome.value == "None" for (outcome,) in quick)
        program = "def f():\n" + textwrap.indent(body, "    ")
        outcome = impatient.run([Call(program=program, arguments="")])[0]
        assert outcome.reason is FailureReason.STALLED
        assert outcome.detail == "longer than 0.3 s of wall-clock time"


def test_a_busy_machine_changes_no_verdict() -> None:
    """A program that needs half of its CPU time passes while many other processes are busy."""
    work = """
        def f():
            import time
            start, total = time.process_time(), 0
            while time.process_time() - start < 0.5:
                total = sum(range(1000))
            return total
    """
    program = textwrap.dedent(work)
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(6 * len(os.sched_getaffinity(0)))
    ]
    try:
        with isolated(workers=1) as pool:
            start = time.monotonic()
            outcome = pool.run([Call(program=program, arguments="")], runs=2)[0]
            seconds = time.monotonic() - start
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert outcome.value == "499500", outcome
    assert seconds > 1.0  # both runs together need this much CPU time


def test_the_wall_clock_limit_is_ten_times_the_cpu_limit_where_none_is_given() -> None:
    assert Executor(cpu_seconds=0.5)._limits.wall_seconds == 10.0
    assert Executor(cpu_seconds=2.0)._limits.wall_seconds == 20.0
    assert Executor(cpu_seconds=0.5, wall_seconds=2.0)._limits.wall_seconds == 2.0


LOOP = "def f(a):\n    while a: pass\n    return a"


def test_a_program_that_ran_out_of_time_is_not_run_again(executor: Executor) -> None:
    calls = [Call(program=LOOP, arguments=str(n)) for n in (0, 1, 2, 3)]
    calls.insert(2, Call(program="def f(a): return a", arguments="7"))
    executor.drain_metrics()
    outcomes = executor.run(calls, timeouts=1)
    assert [o.reason.value for o in outcomes] == ["ok", "timeout", "ok", "not_run", "not_run"]
    assert executor.drain_metrics() == {"ok": 2, "timeout": 1, "not_run": 2}
    reasons = [o.reason.value for o in executor.run(calls, timeouts=2)]
    assert reasons == ["ok", "timeout", "ok", "timeout", "not_run"]
    with pytest.raises(ValueError, match="timeouts"):
        executor.run(calls, timeouts=0)


def test_a_loop_costs_its_cpu_time_once(executor: Executor) -> None:
    """A run that used up its CPU time decides without a second run, and is cached."""
    call = Call(program="def f():\n    while 1: pass\n    return 'once'", arguments="")
    assert executor.run([call], runs=2)[0].reason is FailureReason.TIMEOUT
    assert executor._dispatcher is not None
    row = executor._dispatcher.run([(call, "")], 2)[0]
    assert [outcome.reason for outcome in row] == [FailureReason.TIMEOUT]
    executor.drain_metrics()
    executor.run([call], runs=2)
    assert executor.drain_metrics() == {"timeout": 1, "cached": 1}
