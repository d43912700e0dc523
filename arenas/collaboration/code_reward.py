"""MAGRPO's reward for two functions written at once by two agents (2508.04652): levels, 4 at most.

A helper writes `aux`, a main agent writes the function that the task names and should call `aux`.
Levels: 0.4 for `aux` defined and returning something, 0.6 for the main function defined, 0.5 if the
two together parse, 1 for the share of tests passed; and if at least one passes, 0.5 if the main
agent's code uses the result of `aux`, and 1 more if it does more than call `aux`.

The result is used if a test that passes would fail with another `aux` that gives results of the
same types (`arenas.collaboration.code_use`). A dead call, a caught one, and one whose result is
thrown away earn nothing. The released code judges by the text alone: any call earns 0.5, and 1 more
if the code does more than call it, less 0.5 if the text ignores the result. A result that is only
compared with the right one counts as used, because the comparison can fail.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from arenas.absolute_zero.program_checks import LONGEST_PROGRAM
from arenas.collaboration.code_use import replacements
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
"""The reward of a program that has everything."""
TIMEOUTS = 3
"""Number of tests that may run out of time before all others count as failed. Also the number of
passed tests that are run again with another `aux`."""
PASSED = "passed"


@dataclass(frozen=True, kw_only=True)
class Test:
    """One call of the main function and what it should return."""

    __test__ = False  # not one of pytest's

    arguments: str
    """Comma-separated literals."""
    expected: str
    """A literal."""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """How far a program came, level by level."""

    aux_defined: bool = False
    """The helper's code defines `aux` at the top, and `aux` returns something."""
    main_defined: bool = False
    """The main agent's code defines the function that was asked for."""
    parses: bool = False
    """The two together are a program."""
    outcomes: tuple[str, ...] = ()
    """For every test "passed", "wrong", or the executor's reason; empty where none was run."""
    calls_aux: bool = False
    """True if a test that passes needs the result of the helper's `aux`."""
    wrapper: bool = False
    """True if the main function only calls `aux`."""
    ignores_aux: bool = False
    """True if the main agent's code names `aux`, a test passes, and no test needs the result of
    `aux`."""

    @property
    def passed(self) -> float:
        """Share of the tests."""
        return self.outcomes.count(PASSED) / len(self.outcomes) if self.outcomes else 0.0

    @property
    def reward(self) -> float:
        """The levels' sum, in [0, 4]. Without the main function, or where the two do not parse,
        nothing after that counts."""
        total = 0.4 * self.aux_defined + 0.6 * self.main_defined
        if not self.main_defined or not self.parses:
            return total
        total += 0.5 + self.passed
        if self.passed and self.calls_aux:
            total += 0.5 + 1.0 * (not self.wrapper)
        return total


def grade(
    helper: str, main: str, *, entry: str, tests: Sequence[Test], executor: Executor
) -> Grade:
    """The grade of what the two wrote. No text makes this raise."""
    aux_tree, main_tree = _tree(helper), _tree(main)
    aux, function = _function(aux_tree, AUX), _function(main_tree, entry)
    aux_defined = aux is not None and _returns(aux)
    if function is None:
        return Grade(aux_defined=aux_defined)
    program = joined(helper, main)
    if _tree(program) is None:
        return Grade(aux_defined=aux_defined, main_defined=True)
    outcomes = tuple(_run(program, entry, tests, executor))
    passed = [test for test, found in zip(tests, outcomes, strict=True) if found == PASSED]
    own = aux is None or _function(main_tree, AUX) is not None
    named = bool(passed) and not own and _names_aux(main_tree)
    used = named and _needs_aux(helper, main, entry, passed[:TIMEOUTS], executor)
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
    """The program: the helper's code, then the main agent's."""
    return f"{helper.rstrip()}\n\n{main.rstrip()}\n"


def _run(program: str, entry: str, tests: Sequence[Test], executor: Executor) -> Iterator[str]:
    """The outcomes, a few tests at a time, until too many have run out of time."""
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
    """Return True if one of the passed tests fails with another `aux`.

    A test that runs out of time proves nothing, because a busy machine may be the cause.
    """
    for program in replacements(helper, AUX, main):
        calls = [Call(program=program, arguments=test.arguments, entry=entry) for test in passed]
        for test, outcome in zip(passed, executor.run(calls), strict=True):
            if outcome.reason in OUT_OF_TIME | CIRCUMSTANTIAL:
                continue
            if not outcome.ok or not _same(outcome.value or "", test.expected):
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
    """The syntax tree, or None of what is no program."""
    if len(code) > 2 * LONGEST_PROGRAM + 3:
        return None
    try:
        return parse_program(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _function(tree: ast.Module | None, name: str) -> ast.FunctionDef | None:
    """The function of that name at the top: the last one, which is the one that counts."""
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


def _statements(function: ast.FunctionDef) -> list[ast.stmt]:
    """The body without a docstring."""
    body = function.body
    first = body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if documented else body


def _is_wrapper(function: ast.FunctionDef) -> bool:
    """Whether the function returns what `aux` gives and does nothing else."""
    body = _statements(function)
    if len(body) == 1 and isinstance(body[0], ast.Return):
        return _is_call(body[0].value) and _plain(body[0].value)
    if len(body) != 2 or not isinstance(body[1], ast.Return):
        return False
    names = _assigned(body[0])
    value = body[1].value
    return bool(names) and isinstance(value, ast.Name) and value.id in names


def _plain(call: ast.expr | None) -> bool:
    """Whether a call hands on arguments as they are."""
    if not isinstance(call, ast.Call):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return all(isinstance(value, ast.Name | ast.Constant | ast.Starred) for value in given)


def _assigned(statement: ast.stmt) -> list[str]:
    """The names that a statement gives the result of `aux`, and nothing else, to."""
    if isinstance(statement, ast.Assign) and _is_call(statement.value):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and _is_call(statement.value):
        return [statement.target.id] if isinstance(statement.target, ast.Name) else []
    return []
