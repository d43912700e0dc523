"""Hostile programs for the executor, and a check that its pool still works afterwards."""

import itertools
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from selfplay.sandbox import Call, Executor, FailureReason, IsolationError, Outcome

UNIQUE = itertools.count()


@contextmanager
def isolated(**settings: Any) -> Iterator[Executor]:
    """Yield an executor; skip the test if the kernel does not isolate processes."""
    with Executor(**settings) as pool:
        try:
            pool.run([Call(program="def f(): return 0", arguments="")])
        except IsolationError as error:
            pytest.skip(str(error))
        yield pool


def run(executor: Executor, program: str, arguments: str = "", **options: Any) -> Outcome:
    return executor.run([Call(program=program, arguments=arguments)], **options)[0]


def attack(executor: Executor, body: str, arguments: str = "", **options: Any) -> Outcome:
    """Run the body of `f`, or a whole program that defines `f`; then check that the pool works."""
    body = textwrap.dedent(body).strip("\n")
    if "def f(" not in body:
        body = "def f():\n" + textwrap.indent(body, "    ")
    outcome = executor.run([Call(program=body, arguments=arguments)], **options)[0]
    number = next(UNIQUE)
    calls = [Call(program=f"def f(x): return x + {number}", arguments="1")] * 2
    for served in executor.run(calls, runs=2):
        assert served.value == str(number + 1)
    assert len(outcome.detail) <= 200
    assert outcome.detail.isprintable()
    assert (outcome.value is None) == (outcome.reason is not FailureReason.OK)
    return outcome
