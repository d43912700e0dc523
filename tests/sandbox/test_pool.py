"""Tests of the executor's interface: values, verdicts, order, cached results, settings."""

import copy
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from selfplay.errors import ConfigError
from selfplay.sandbox import Call, Executor, FailureReason, Outcome
from tests.helpers.sandbox_attacks import isolated, run


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with isolated(workers=1, wall_seconds=10.0, cpu_seconds=5.0) as pool:
        yield pool


@pytest.mark.parametrize(
    ("program", "arguments", "value"),
    [
        ("def f(a): return a", "'Hello world'", "'Hello world'"),
        ("def f(a, b=2, *c): return [a, b, c]", "1", "[1, 2, ()]"),
        ("def f(*a): return a", "[1], {'k': (2,)}, {3}, None, b'x', -0.0", None),
        ("f = lambda x: x is True", "True", "True"),
        ("import math\ndef f(n):\n    return math.factorial(n)", "5", "120"),
        ("def f(n): return 1 if n < 2 else n * f(n - 1)", "5", "120"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\n"
            "def f(): return P(3).x",
            "",
            "3",
        ),
        ("import __main__\nx = 3\ndef f(): return __main__.x, __name__", "", "(3, 'program')"),
        ("def f(): return {'b': 1, 'a': {3, 1, 2}}", "", "{'a': {1, 2, 3}, 'b': 1}"),
        ("def f(): return 'h\u00e9llo \U0001f600'", "", "'h\u00e9llo \U0001f600'"),
        ("from random import Random\ndef f(): return Random(0).randrange(100)", "", "49"),
        ("def f(a): a.append(1); return a", "[0]", "[0, 1]"),
    ],
)
def test_values(executor: Executor, program: str, arguments: str, value: Any) -> None:
    outcome = run(executor, program, arguments, runs=2)
    expected = value or "([1], {'k': (2,)}, {3}, None, b'x', 0.0)"
    assert outcome == Outcome(reason=FailureReason.OK, value=expected, detail="")
    assert outcome.ok


def test_results_are_in_order_and_do_not_affect_each_other(executor: Executor) -> None:
    calls = [Call(program=f"def f(x): return x * {n}", arguments="7") for n in range(40)]
    calls[5] = Call(program="def f(", arguments="7")
    calls[6] = replace(calls[6], arguments="g()")
    calls[7] = replace(calls[7], entry="g")
    calls[8] = Call(program="def f(x): raise KeyError(x)", arguments="'key'")
    outcomes = executor.run(calls)
    assert [o.value for o in outcomes[9:]] == [str(7 * n) for n in range(9, 40)]
    assert [o.reason for o in outcomes[5:9]] == ["syntax", "bad_arguments", "no_entry", "raised"]
    assert outcomes[8].detail == "KeyError: 'key' (line 1)"
    assert executor.run([]) == []


def test_another_entry(executor: Executor) -> None:
    call = Call(program="def g(): return 1\ndef f(): return 2", arguments="", entry="g")
    assert executor.run([call])[0].value == "1"


@pytest.mark.parametrize(
    "body",
    [
        "return list(set('abcdefghijklmnop'))",
        "return hash('text')",
        "return id(object())",
        "import random\n    return random.random()",
        "import os\n    return os.urandom(8)",
        "import time\n    return time.perf_counter_ns()",
        "return str(object())",
        "import tempfile\n    return next(tempfile._get_candidate_names())",
    ],
)
def test_results_that_differ_between_processes_are_nondeterministic(
    executor: Executor, body: str
) -> None:
    outcome = run(executor, f"def f():\n    {body}", runs=2)
    assert outcome.reason is FailureReason.NONDETERMINISTIC
    assert outcome.value is None and " in another" in outcome.detail


def test_order_of_sets_and_dicts_is_no_difference(executor: Executor) -> None:
    program = "def f(): return set('abcdefgh'), {c: 1 for c in set('abcdefgh')}"
    assert run(executor, program, runs=2).ok


def test_state_does_not_leak_from_run_to_run(executor: Executor) -> None:
    program = (
        "import math\ndef f():\n    math.seen = getattr(math, 'seen', 0) + 1\n    return math.seen"
    )
    with Executor(workers=1, cache_size=0) as pool:
        for _ in range(5):
            assert run(pool, program, runs=2).value == "1"


def test_three_runs(executor: Executor) -> None:
    assert run(executor, "def f(): return 3", runs=3).value == "3"
    with pytest.raises(ValueError, match="runs"):
        executor.run([], runs=0)


def test_equal_calls_run_once_and_stalled_runs_are_not_cached() -> None:
    with Executor(workers=1, wall_seconds=60.0, cache_size=2) as pool:
        one, two = (Call(program=f"def f(): return {n}", arguments="") for n in (1, 2))
        assert [o.value for o in pool.run([one, two, one, one])] == ["1", "2", "1", "1"]
        assert pool.drain_metrics() == {"ok": 4, "cached": 2}
        pool.run([one])
        assert pool.drain_metrics() == {"ok": 1, "cached": 1}
        pool.run([one], runs=2)  # another number of runs is not cached
        assert pool.drain_metrics() == {"ok": 1}
        assert pool.counts == {}
        pool.run([two, replace(two, arguments="1")])  # no longer in the cache
        assert pool.drain_metrics() == {"ok": 1, "raised": 1}
        pool.run([Call(program="def f(): return 1", arguments="x")])
        assert pool.drain_metrics() == {"bad_arguments": 1}
    slow = Call(program="import time\ndef f(): time.sleep(9)", arguments="")
    with Executor(workers=1, wall_seconds=0.3, cache_size=2) as pool:
        for _ in range(2):
            assert pool.run([slow])[0].reason is FailureReason.STALLED
        assert pool.drain_metrics() == {"stalled": 2}


def test_no_cache() -> None:
    with Executor(workers=1, cache_size=0) as pool:
        for _ in range(2):
            run(pool, "def f(): return 1")
        assert pool.drain_metrics() == {"ok": 2}


def test_threads_share_an_executor(executor: Executor) -> None:
    wrong = []

    def ask(number: int) -> None:
        for step in range(10):
            outcome = run(executor, f"def f(x): return x + {number * 100}", str(step), runs=2)
            if outcome.value != str(number * 100 + step):
                wrong.append(outcome)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_copies_have_only_the_configuration() -> None:
    with Executor(workers=1, wall_seconds=9.0, cache_size=7) as pool:
        run(pool, "def f(): return 1")
        for twin in (copy.copy(pool), copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
            assert twin._dispatcher is None and twin.counts == {}
            assert twin._configuration == pool._configuration
        with twin:
            assert run(twin, "def f(): return 2").value == "2"
        assert run(pool, "def f(): return 3").value == "3"


def test_a_closed_executor_starts_again() -> None:
    pool = Executor(workers=1)
    pool.close()
    assert run(pool, "def f(): return 1").value == "1"
    pool.close()
    pool.close()
    assert run(pool, "def f(): return 2").value == "2"
    pool.close()


def test_limits_of_output_and_memory_are_settings() -> None:
    program = "def f(n): return 'x' * n"
    with Executor(workers=1, output_characters=10, memory_mb=80) as pool:
        assert run(pool, program, "8").ok
        assert run(pool, program, "9").reason is FailureReason.OUTPUT_LIMIT
        assert run(pool, program, str(80 << 20)).reason is FailureReason.MEMORY
    with Executor(workers=1, output_characters=1_500_000) as pool:
        assert len(run(pool, program, "999998").value or "") == 1_000_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 0},
        {"wall_seconds": 0},
        {"cpu_seconds": float("nan")},
        {"memory_mb": 1},
        {"output_characters": 0},
        {"isolation": "none"},
    ],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Executor(**wrong)
