"""MAGRPO's reward for two functions written at once by two agents (2508.04652): levels, 4 at most.

A helper writes `aux`, a main agent writes the function that the task names and should call `aux`.
Levels: 0.4 for `aux` defined and returning something, 0.6 for the main function defined, 0.5 if the
two together parse, 1 for the share of tests passed; and if at least one passes, 0.5 if the main
function calls `aux`, 1 if it does more than that, -0.5 if it calls `aux` for nothing.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from arenas.program_checks import LONGEST_PROGRAM
from selfplay.executor import Call, Executor, LiteralError, Reason, canonical, parse_literal

AUX = "aux"
MOST = 4.0
"""The reward of a program that has everything."""
TIMEOUTS = 3
"""Tests that run out of time before the rest count as failed."""


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
    """The main function calls the helper's `aux`: there is one, and the main agent's code has none
    of its own in its place."""
    wrapper: bool = False
    """The main function is nothing but that call."""
    ignores_aux: bool = False
    """Every call of `aux` is made for nothing: its result is not used."""

    @property
    def passed(self) -> float:
        """Share of the tests."""
        return self.outcomes.count("passed") / len(self.outcomes) if self.outcomes else 0.0

    @property
    def reward(self) -> float:
        """The levels' sum, in [0, 4]. Without the main function, or where the two do not parse,
        nothing after that counts."""
        total = 0.4 * self.aux_defined + 0.6 * self.main_defined
        if not self.main_defined or not self.parses:
            return total
        total += 0.5 + self.passed
        if self.passed and self.calls_aux:
            total += 0.5 + 1.0 * (not self.wrapper) - 0.5 * self.ignores_aux
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
    own = aux is None or _function(main_tree, AUX) is not None
    calls = [] if own else [node for node in _inside(function) if _is_call(node)]
    return Grade(
        aux_defined=aux_defined,
        main_defined=True,
        parses=True,
        outcomes=tuple(_run(program, entry, tests, executor)),
        calls_aux=bool(calls),
        wrapper=_is_wrapper(function),
        ignores_aux=bool(calls) and _used(function) == 0,
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
            timeouts += outcome.reason is Reason.TIMEOUT
            if not outcome.ok:
                yield outcome.reason.value
            else:
                yield "passed" if _same(outcome.value or "", test.expected) else "wrong"


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
        return ast.parse(code)
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


def _used(function: ast.FunctionDef) -> int:
    """How many calls of `aux` have a result that something is done with."""
    nodes = list(_inside(function))
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    total = sum(_is_call(node) for node in nodes)
    for node in nodes:
        dropped = isinstance(node, ast.Expr) and _is_call(node.value)
        names = _assigned(node) if isinstance(node, ast.stmt) else []
        total -= dropped or (bool(names) and not read.intersection(names))
    return total
