"""Tests of what a run reads: clocks and randomness differ only between lanes, ids never."""

from collections.abc import Iterator

import pytest

from selfplay.sandbox import Call, Executor, FailureReason
from selfplay.sandbox.dispatcher import HASH_SEEDS
from tests.helpers.sandbox_attacks import isolated, run


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with isolated(workers=1, cpu_seconds=5.0) as pool:
        yield pool


DIFFERENT = [
    "import time\n    return int(time.time())",
    "import time\n    return int(time.time()) % 2",
    "import time\n    return time.time() > 1.9e9",
    "import time\n    return time.time_ns() // 10**12",
    "import time\n    return time.gmtime().tm_year",
    "import time\n    return time.localtime()[3]",
    "import time\n    return time.strftime('%B')",
    "import time\n    return time.asctime()[:3]",
    "import time\n    return time.ctime()[:3]",
    "import time\n    return time.clock_gettime(time.CLOCK_REALTIME) // 1000",
    "import time\n    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10**12",
    "import time\n    return int(time.monotonic())",
    "import time\n    return int(time.perf_counter())",
    "import time\n    return int(time.process_time())",
    "import time\n    return int(time.thread_time())",
    "import datetime\n    return datetime.date.today().year",
    "import datetime\n    return datetime.datetime.now().hour",
    "import datetime\n    return datetime.datetime.utcnow().weekday()",
    "import datetime\n    return datetime.datetime.now(datetime.timezone.utc).month",
    "import timeit\n    return int(timeit.default_timer())",
    "from timeit import time\n    return int(time.time())",
    "import email.utils\n    return email.utils.formatdate()[:3]",
    "import email.utils\n    return email.utils.time.time() > 1.9e9",
    "import email.utils\n    return email.utils.localtime().year",
    "import email.utils\n    return email.utils.random.randrange(9)",
    "import logging\n    return int(logging.makeLogRecord({}).created)",
    "import calendar\n    return calendar.datetime.date.today().day",
    "import uuid\n    return uuid.uuid1().time_hi_version",
    "import uuid\n    return uuid.uuid4().hex[:1]",
    "import random\n    return random.random() < 0.5",
    "import random\n    return random.randrange(2)",
    "import random\n    return random.choice([1, 2, 3])",
    "import random\n    a = [1, 2, 3]\n    random.shuffle(a)\n    return a[0]",
    "import random\n    return random.Random().randrange(9)",
    "import random\n    random.seed()\n    return random.randrange(9)",
    "import random\n    return random.SystemRandom().randrange(99)",
    "import secrets\n    return secrets.randbelow(99)",
    "import os\n    return os.urandom(1)",
    "import os\n    return os.getrandom(1)",
    "import posix\n    return posix.urandom(1)",
    "import tempfile\n    return next(tempfile._get_candidate_names())[:1]",
    "import statistics\n    return statistics.NormalDist().samples(1)[0] > 0",
]


@pytest.mark.parametrize("body", DIFFERENT)
def test_clocks_and_randomness_differ_between_the_lanes(executor: Executor, body: str) -> None:
    outcome = run(executor, f"def f():\n    {body}", runs=2)
    assert outcome.reason is FailureReason.NONDETERMINISTIC, outcome


@pytest.mark.parametrize("body", DIFFERENT[:2] + DIFFERENT[-10:])
def test_a_single_run_reads_the_same_in_every_process(body: str) -> None:
    values = set()
    for _ in range(2):
        with isolated(workers=1, cpu_seconds=5.0, cache_size=0) as pool:
            values |= {run(pool, f"def f():\n    {body}").value for _ in range(2)}
    assert len(values) == 1 and None not in values


EQUAL = {
    "import os\n    return os.getpid()": "0",
    "import posix\n    return posix.getpid()": "0",
    "import threading\n    return threading.get_native_id()": "0",
    "import multiprocessing as m\n    return m.current_process().pid": "0",
    "import ctypes\n    return ctypes.CDLL(None).getpid()": "0",
    "import os\n    return os.getppid(), os.getuid()": "(1, 65534)",
    "import posix\n    return posix.environ": "{}",
    "import time\n    return time.tzname, time.timezone, time.localtime(0)[3]": (
        "(('UTC', 'UTC'), 0, 0)"
    ),
}


@pytest.mark.parametrize("body", EQUAL)
def test_ids_and_environment_are_the_same_in_every_run(executor: Executor, body: str) -> None:
    run(executor, "def f(): return 'another process number'")
    assert run(executor, f"def f():\n    {body}", runs=2).value == EQUAL[body]


@pytest.mark.parametrize(
    "body",
    [
        "import os\n    return os.times()",
        "import resource\n    return resource.getrusage(0).ru_maxrss",
        "import signal\n    return signal.getitimer(signal.ITIMER_PROF)",
        "import os\n    return os.getpgid(0)",
    ],
)
def test_the_load_of_the_machine_cannot_be_read(executor: Executor, body: str) -> None:
    assert run(executor, f"def f():\n    {body}", runs=2).reason is FailureReason.FORBIDDEN


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("import time\n    return str(time.gmtime(0)[:6])", "'(1970, 1, 1, 0, 0, 0)'"),
        ("import time\n    return time.strftime('%Y', time.gmtime(0))", "'1970'"),
        ("import time\n    return time.asctime(time.gmtime(0))", "'Thu Jan  1 00:00:00 1970'"),
        ("import time\n    return time.ctime(0)", "'Thu Jan  1 00:00:00 1970'"),
        ("import time\n    a = time.time()\n    return 0 <= time.time() - a < 5", "True"),
        ("import time\n    a = time.monotonic_ns()\n    return a < time.monotonic_ns()", "True"),
        (
            "import time\n    a = time.perf_counter()\n    time.sleep(0.05)\n"
            "    return time.perf_counter() - a >= 0.05",
            "True",
        ),
        (
            "from datetime import datetime as d\n"
            "    return str(d(2020, 2, 28) - d(2019, 3, 1)), d(2020, 1, 2).strftime('%a %j')",
            "('364 days, 0:00:00', 'Thu 002')",
        ),
        (
            "from datetime import datetime as d\n    return str(d.strptime('3/4/99', '%d/%m/%y'))",
            "'1999-04-03 00:00:00'",
        ),
        (
            "import zoneinfo, datetime as d\n"
            "    return str(d.datetime(2020, 1, 1, tzinfo=d.timezone.utc))",
            "'2020-01-01 00:00:00+00:00'",
        ),
        ("import random\n    random.seed(3)\n    return random.random()", "0.23796462709189137"),
        ("import uuid\n    return str(uuid.uuid5(uuid.NAMESPACE_DNS, 'a'))[:8]", "'4f3f2898'"),
    ],
)
def test_functions_of_given_times_and_seeds_are_unchanged(
    executor: Executor, body: str, value: str
) -> None:
    assert run(executor, f"def f():\n    {body}", runs=2).value == value


WALK = """
import importlib, sys, types, warnings
SKIPPED = {"antigravity", "this", "idlelib", "turtledemo", "tkinter", "turtle", "test"}
READERS = {
    f"{clock}{unit}" for unit in ("", "_ns")
    for clock in (
        "time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"
    )
} | {"gmtime", "localtime", "ctime", "asctime", "strftime", "urandom", "getrandom"}

def f():
    warnings.simplefilter("ignore")
    imported = 0
    for name in sorted(set(sys.stdlib_module_names) - SKIPPED):
        try:
            importlib.import_module(name)
            imported += 1
        except BaseException:
            pass
    found = []
    for name, module in sorted(sys.modules.items()):
        for key, value in sorted(vars(module).items()) if module else ():
            built_in = isinstance(value, types.BuiltinFunctionType)
            if built_in and value.__module__ in ("time", "posix") and value.__name__ in READERS:
                found.append(f"{name}.{key}")
    return imported > 150, found
"""


def test_no_module_of_the_library_has_a_real_clock_or_randomness() -> None:
    with isolated(workers=1, cpu_seconds=60.0, wall_seconds=600.0, memory_mb=1024) as pool:
        assert run(pool, WALK).value == "(True, [])"


def test_the_hash_seed_of_a_single_run_depends_only_on_its_call() -> None:
    """A verdict does not depend on the cache, the place in the batch or the executor."""
    calls = [
        Call(program=f"def f(a):\n    return list(set(a))[0], {n}", arguments="'abcdefgh'")
        for n in range(12)
    ]
    with isolated(workers=2) as pool:
        alone = [pool.run([call])[0].value for call in calls]
    with isolated(workers=1) as pool:
        pool.run(calls[1::3])
        assert [outcome.value for outcome in pool.run(calls[::-1])] == alone[::-1]
    with isolated(workers=1, cache_size=0) as pool:
        assert [outcome.value for outcome in pool.run(calls)] == alone
        # Both hash seeds are in use.
        assert len({str(value)[:4] for value in alone}) == len(HASH_SEEDS)
        assert {o.reason for o in pool.run(calls, runs=2)} == {FailureReason.NONDETERMINISTIC}
