"""Memory, processor time and wall-clock time end a run by the kernel's hand, whatever it does."""

import textwrap
from collections.abc import Iterator

import pytest
from hostile import attack, isolated

from selfplay.executor import Call, Executor, Reason


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with isolated(workers=1, wall_seconds=60.0, cpu_seconds=0.4, output_characters=2_000) as pool:
        yield pool


@pytest.fixture(scope="module")
def patient() -> Iterator[Executor]:
    """Memory, and not time, is what ends a run, however slow the machine is."""
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
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_capped(patient: Executor, name: str) -> None:
    assert attack(patient, MEMORY[name]).reason is Reason.MEMORY


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
    "result pipe closed": "import os\nos.close(3)\nwhile True: pass",
}


@pytest.mark.parametrize("name", LOOPS)
def test_processor_time_is_capped(executor: Executor, name: str) -> None:
    outcome = attack(executor, LOOPS[name])
    assert outcome.reason is Reason.TIMEOUT and outcome.detail == "more than 0.4 s of CPU time"


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
        # A busy machine may be slower than that, but not every time.
        quick = (impatient.run([Call(program="def f(): pass", arguments="")]) for _ in range(50))
        assert any(outcome.value == "None" for (outcome,) in quick)
        program = "def f():\n" + textwrap.indent(body, "    ")
        outcome = impatient.run([Call(program=program, arguments="")])[0]
        assert outcome.reason is Reason.TIMEOUT and outcome.detail == "longer than 0.3 s"
