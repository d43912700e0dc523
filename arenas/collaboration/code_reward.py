"""MAGRPO's reward for two functions that two agents write at once (2508.04652), in [0, 4].

A helper writes the function `aux`. A main agent writes the function that the task names, which
should call `aux`. The reward is a sum: 0.4 if `aux` is defined and returns something, 0.6 if the
main function is defined, 0.5 if the joined program parses, and the fraction of passed tests. If at
least one test passes, 0.5 is added if the main agent's code uses the result of `aux`, and then 1
more if its function does more than return that result.

The result counts as used if a passed test fails with another `aux` that returns other results of
the same types, and passes with one that returns the same results (`arenas.collaboration.code_use`).
A call earns nothing if it never runs, if it is in an exception handler, or if its result is not
used. The released code looks at the text only: any call earns 0.5, and 1 more if the code does more
than call `aux`, minus 0.5 if the text ignores the result. A result that is only compared with the
correct one counts as used, because the comparison can fail.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from arenas.absolute_zero.program_checks import LONGEST_PROGRAM
from arenas.collaboration.code_use import Kind, with_other
from selfplay.sandbox import (
    OUT_OF_TIME,
    Call,
    Executor,
    LiteralError,
    canonical,
    parse_literal,
    parse_program,
)
from selfplay.sandbox.types import CIRCUMSTANTIAL

AUX = "aux"
MOST = 4.0
"""Maximum reward."""
TIMEOUTS = 3
"""Number of timeouts after which all other tests count as failed. Also the number of
passed tests that run again with another `aux`."""
PASSED = "passed"
PROVES_NOTHING = {PASSED, *(reason.value for reason in OUT_OF_TIME | CIRCUMSTANTIAL), "not_run"}
"""Outcomes, with other results of `aux`, that do not show that a test needs the right results."""


@dataclass(frozen=True, kw_only=True)
class Test:
    """One call of the main function and its expected result."""

    __test__ = False  # pytest must not collect this class

    arguments: str
    """Comma-separated literals, the arguments of the call."""
    expected: str
    """Literal of the correct result."""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """Levels that a program reached. Made by `grade`, read by the arena."""

    aux_defined: bool = False
    """True if the helper's code defines `aux` at the top level, with a return value."""
    main_defined: bool = False
    """True if the main agent's code defines the requested function."""
    parses: bool = False
    """True if the joined code parses."""
    outcomes: tuple[str, ...] = ()
    """Per test "passed", "wrong" or the executor's reason; empty if no test was run."""
    calls_aux: bool = False
    """True if a passed test needs the result of the helper's `aux`."""
    wrapper: bool = False
    """True if the main function only calls `aux`."""
    ignores_aux: bool = False
    """True if the main agent's code names `aux` and a test passes, but no test needs the result of
    `aux`."""

    @property
    def passed(self) -> float:
        """Fraction of passed tests."""
        return self.outcomes.count(PASSED) / len(self.outcomes) if self.outcomes else 0.0

    @property
    def reward(self) -> float:
        """Sum of the levels, in [0, 4]. If the main function is missing or the code does not parse,
        the later levels do not count."""
        total = 0.4 * self.aux_defined + 0.6 * self.main_defined
        if not self.main_defined or not self.parses:
            return total
        total += 0.5 + self.passed
        if self.passed and self.calls_aux:
            total += 0.5 + 1.0 * (not self.wrapper)
        return total


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Code of a problem around the two agents' code, such as a function that runs assertions."""

    before: str = ""
    """Code before the helper's."""
    after: str = ""
    """Code after the main agent's."""
    called: str = ""
    """Function that the tests call; "" for the requested function."""


def grade(
    helper: str,
    main: str,
    *,
    entry: str,
    tests: Sequence[Test],
    executor: Executor,
    frame: Frame | None = None,
) -> Grade:
    """Return the grade of the two agents' code; any text is accepted.

    Args:
        helper: Code of the helper.
        main: Code of the main agent.
        entry: Name of the main function.
        tests: Tests of the joined program.
        executor: Runs the tests.
        frame: Code of the problem around the agents' code; None: no such code.
    """
    frame = frame or Frame()
    aux_tree, main_tree = _tree(helper), _tree(main)
    aux, function = _function(aux_tree, AUX), _function(main_tree, entry)
    aux_defined = aux is not None and _returns(aux)
    if function is None:
        return Grade(aux_defined=aux_defined)
    if _tree(joined(helper, main)) is None:
        return Grade(aux_defined=aux_defined, main_defined=True)
    first = joined(frame.before, helper) if frame.before else helper
    last = joined(main, frame.after) if frame.after else main
    called = frame.called or entry
    outcomes = tuple(_run(joined(first, last), called, tests, executor))
    passed = [test for test, found in zip(tests, outcomes, strict=True) if found == PASSED]
    own = aux is None or _function(main_tree, AUX) is not None
    named = bool(passed) and not own and _names_aux(main_tree)
    used = named and _needs_aux(first, last, called, passed[:TIMEOUTS], executor)
    return Grade(
        aux_defined=aux_defined,
        main_defined=True,
        parses=True,
        outcomes=outcomes,
        calls_aux=used,
        wrapper=_is_wrapper(function),
        ignores_aux=named and not used,
    )


def joined(helper: str, main: str) -> str:
    """Return the program: the helper's code, then the main agent's."""
    return f"{helper.rstrip()}\n\n{main.rstrip()}\n"


def _run(program: str, entry: str, tests: Sequence[Test], executor: Executor) -> Iterator[str]:
    """Yield the outcomes; after `TIMEOUTS` timeouts the remaining tests are "not_run"."""
    timeouts = 0
    for begin in range(0, len(tests), TIMEOUTS):
        some = tests[begin : begin + TIMEOUTS]
        if timeouts >= TIMEOUTS:
            yield from ["not_run"] * len(some)
            continue
        calls = [Call(program=program, arguments=test.arguments, entry=entry) for test in some]
        for test, outcome in zip(some, executor.run(calls), strict=True):
            timeouts += outcome.reason in OUT_OF_TIME
            if not outcome.ok:
                yield outcome.reason.value
            else:
                yield PASSED if _same(outcome.value or "", test.expected) else "wrong"


def _needs_aux(
    helper: str, main: str, entry: str, passed: Sequence[Test], executor: Executor
) -> bool:
    """Return True if one of the passed tests fails with other results of `aux`.

    A test that runs out of time proves nothing, because a busy machine may be the cause. A test
    that also fails if the replaced `aux` returns the same results proves nothing either.
    """

    def outcomes(kind: Kind, tests: Sequence[Test]) -> list[str]:
        return list(_run(with_other(helper, AUX, main, kind), entry, tests, executor))

    kinds: Sequence[Kind] = ("other", "empty")
    for kind in kinds:
        found = zip(passed, outcomes(kind, passed), strict=True)
        failed = [test for test, outcome in found if outcome not in PROVES_NOTHING]
        if failed and PASSED in outcomes("same", failed):
            return True
    return False


def _names_aux(tree: ast.Module | None) -> bool:
    found = ast.walk(tree) if tree else ()
    return any(isinstance(node, ast.Name) and node.id == AUX for node in found)


def _same(value: str, expected: str) -> bool:
    try:
        return value == canonical(parse_literal(expected))
    except LiteralError:
        return False


def _tree(code: str) -> ast.Module | None:
    """Return the syntax tree, or None if the code does not parse."""
    if len(code) > 2 * LONGEST_PROGRAM + 3:
        return None
    try:
        return parse_program(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _function(tree: ast.Module | None, name: str) -> ast.FunctionDef | None:
    """Return the last top-level function of that name, which is the one in effect."""
    found = [
        node
        for node in (tree.body if tree else [])
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    return found[-1] if found else None


def _inside(function: ast.FunctionDef) -> Iterator[ast.AST]:
    for statement in function.body:
        yield from ast.walk(statement)


def _returns(function: ast.FunctionDef) -> bool:
    return any(isinstance(n, ast.Return) and n.value is not None for n in _inside(function))


def _is_call(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == AUX


def _is_wrapper(function: ast.FunctionDef) -> bool:
    """Return True if the function only returns the result of `aux`.

    Statements that do nothing and assignments of names and constants make no difference.
    """
    results = set[str]()
    for statement in function.body:
        if isinstance(statement, ast.Return):
            value = _unpacked(statement.value)
            if isinstance(value, ast.Name):
                return value.id in results
            return _is_call(value) and _plain(value)
        if isinstance(statement, ast.Pass):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant | ast.Name):
            continue
        names, value = _assignment(statement)
        if _is_call(value) or (isinstance(value, ast.Name) and value.id in results):
            results.update(names)
        elif isinstance(value, ast.Name | ast.Constant):
            results.difference_update(names)
        else:
            return False
    return False


def _unpacked(value: ast.expr | None) -> ast.expr | None:
    """Return the element of a literal tuple or list with a literal index; otherwise the value."""
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, ast.Constant):
        return value
    inner, place = _unpacked(value.value), value.slice.value
    if not isinstance(inner, ast.Tuple | ast.List) or not isinstance(place, int):
        return value
    return _unpacked(inner.elts[place]) if place < len(inner.elts) else value


def _plain(call: ast.expr | None) -> bool:
    """Return True if a call passes only names and constants."""
    if not isinstance(call, ast.Call):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return all(isinstance(value, ast.Name | ast.Constant | ast.Starred) for value in given)


def _assignment(statement: ast.stmt) -> tuple[list[str], ast.expr | None]:
    """Return the names and the value of an assignment; the value is None for another statement."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return [], None
    targets = (
        [statement.target] if isinstance(statement, ast.AnnAssign) else list(statement.targets)
    )
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names, _unpacked(statement.value) if len(names) == len(targets) else None
