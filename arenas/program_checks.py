"""What a proposed program must look like before it is run: Absolute Zero's static filters.

These keep tasks well-formed and deterministic. They are no defence: that is the executor's work.
"""

import ast
from functools import lru_cache

from selfplay.executor import parse_arguments
from selfplay.executor.literal import LiteralError, canonical, parse_literal

LONGEST_PROGRAM = 10_000
"""Characters."""

BANNED = frozenset(
    [
        "logging",
        "random",
        "multiprocessing",
        "pebble",
        "subprocess",
        "threading",
        "datetime",
        "time",
        "hashlib",
        "hmac",
        "bcrypt",
        "os",
        "sys",
        "calendar",
        "secrets",
        "uuid",
        "socket",
        "asyncio",
        "signal",
        "ctypes",
    ]
)
"""Modules that make a program depend on more than its input (the list of 2505.03335, and a few)."""


def fault(program: str, *, entry: str = "f") -> str | None:
    """The named reason why `program` is no task, or None.

    A task is a module of imports and exactly one function, named `entry`, that has a parameter and
    returns something.
    """
    if len(program) > LONGEST_PROGRAM:
        return "too_long"
    try:
        tree = ast.parse(program)
        ast.unparse(tree)  # so that `normal_form` cannot fail on what passes here
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "syntax"
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    if not functions or functions[0] not in tree.body or functions[0].name != entry:
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
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        elif isinstance(node, ast.Name) and node.id in ("input", "__import__"):
            return "banned"
        if any(module.partition(".")[0] in BANNED for module in modules):
            return "banned"
    return None


@lru_cache(maxsize=4_096)
def normal_form(program: str) -> str:
    """The program without comments, spacing and quoting styles: equal for equal programs."""
    return ast.unparse(ast.parse(program))


def canonical_arguments(text: str) -> str:
    """Comma-separated literals in canonical form; raises LiteralError."""
    return ", ".join(canonical(value) for value in parse_arguments(text))


def comparable(kind: str, answer: str | None) -> str | None:
    """An attempt at a task of this type in canonical form, "" for what is none; None of induction:
    programs can be equal in every way but their text."""
    if kind == "induction":
        return None
    try:
        if kind == "deduction":
            return canonical(parse_literal(answer or ""))
        return canonical_arguments(answer or "")
    except LiteralError:
        return ""
