"""Static checks of proposed programs before they run, after Absolute Zero (2505.03335).

The checks keep tasks well-formed and refuse programs that visibly depend on more than their input.
They are no protection: the executor isolates programs, and detects what these checks miss.
"""

import ast
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

from arenas.absolute_zero.normal_form import normal_form
from selfplay.sandbox import parse_arguments, parse_program
from selfplay.sandbox.literals import LiteralError, canonical, parse_literal

LONGEST_PROGRAM = 10_000
"""Maximum length of a program, in characters."""

_PURE = """
    abc array base64 bisect cmath collections colorsys copy dataclasses decimal difflib enum
    fractions functools graphlib heapq html itertools json keyword math numbers operator re
    statistics string struct textwrap types typing unicodedata
"""
PURE = frozenset(_PURE.split())
"""Modules of Python's library that a task may import. Their functions depend only on arguments, and
they do not include the hashes that 2505.03335 bans as impossible to compute by hand."""

_BANNED = "input __import__ __builtins__ hash id eval exec compile globals open breakpoint"
BANNED_NAMES = frozenset(_BANNED.split())
"""Names that make a task depend on more than its input, or that can hide such names: hashes and
addresses differ between processes, and evaluated text can contain any code."""

OPEN_DUNDERS = frozenset({"__name__", "__qualname__", "__doc__"})
"""Special attributes that a task may read. Others give access to the interpreter or to hashes."""


def fault(program: str) -> str | None:
    """Return the name of the reason why `program` is not a valid task, or None.

    A task is a module of imports and exactly one function, named `f`, that has a parameter and
    returns something.
    """
    if len(program) > LONGEST_PROGRAM:
        return "too_long"
    try:
        tree = parse_program(program)
        normal_form(program)  # later calls cannot fail on an accepted program
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "syntax"
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    if not functions or functions[0] not in tree.body or functions[0].name != "f":
        return "no_entry"
    if len(functions) > 1:
        return "several_functions"
    if isinstance(functions[0], ast.AsyncFunctionDef):
        return "no_entry"
    if any(not isinstance(n, ast.FunctionDef | ast.Import | ast.ImportFrom) for n in tree.body):
        return "stray_code"
    arguments = functions[0].args
    if not (arguments.args or arguments.posonlyargs or arguments.vararg):
        return "no_parameter"
    if not any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(tree)):
        return "no_return"
    return "banned" if _reaches_out(tree) else None


def _reaches_out(tree: ast.Module) -> bool:
    """Return True if the program visibly uses more of Python than pure modules.

    A module may only be the start of a dotted path. So no variable holds a module, and every step
    of the path can be checked: `typing.sys` and `collections._sys` are modules too.
    """
    modules: dict[str, ModuleType | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            if any(alias.name.partition(".")[0] not in PURE for alias in node.names):
                return True
            for alias in node.names:
                whole, root = _module(alias.name), alias.name.partition(".")[0]
                modules[alias.asname or root] = whole if alias.asname else _module(root)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            if node.level or name.partition(".")[0] not in PURE:
                return True
            for alias in node.names:
                inner = _module(f"{name}.{alias.name}")
                if _leads_out(_module(name), [alias.name]):
                    return True
                if inner is not None:
                    modules[alias.asname or alias.name] = inner
    paths: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            special = node.attr.startswith("__") and node.attr.endswith("__")
            if special and node.attr not in OPEN_DUNDERS:
                return True
            start, names = _path(node)
            if start is not None and start.id in modules:
                paths.add(id(start))
                if _leads_out(modules[start.id], names):
                    return True
    return any(
        node.id in BANNED_NAMES or (node.id in modules and id(node) not in paths)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
    )


def _module(name: str) -> ModuleType | None:
    """Return a pure module, or one inside a pure package; None if there is no such module.

    The import of a name with hundreds of parts raises RecursionError.
    """
    try:
        return import_module(name)
    except (ImportError, RecursionError):
        return None


def _leads_out(module: ModuleType | None, names: Iterable[str]) -> bool:
    """Return True if a dotted path leads out of the pure modules, as `re.enum.sys` does.

    The modules are those of this interpreter; only their names are looked up.
    """
    place: object = module
    for name in names:
        place = getattr(place, name, None)
        if not isinstance(place, ModuleType):
            return False
        if place.__name__.partition(".")[0].strip("_") not in PURE:
            return True
    return False


def _path(node: ast.expr) -> tuple[ast.Name | None, list[str]]:
    """Return the first name of a dotted path (None if it is not a name), and its steps."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return (node if isinstance(node, ast.Name) else None), names


def canonical_arguments(text: str) -> str:
    """Return comma-separated literals in canonical form; raises LiteralError."""
    return ", ".join(canonical(value) for value in parse_arguments(text))


def comparable(kind: str, answer: str | None) -> str | None:
    """Return an answer in canonical form, "" if it is invalid.

    Returns None for induction: two different programs can be equivalent.
    """
    if kind == "induction":
        return None
    try:
        if kind == "deduction":
            return canonical(parse_literal(answer or ""))
        return canonical_arguments(answer or "")
    except LiteralError:
        return ""
