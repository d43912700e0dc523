"""Descriptions of configs, from their leading comments and the source code that they name.

Source files are read as data. Nothing is imported, so that a config of any origin can be described.
`selfplay list` shows the first sentence of a description, and `docs/configuration.md` all of it.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from yaml import YAMLError

from selfplay.config.instantiate import TARGET
from selfplay.errors import one_line

Definition = ast.ClassDef | ast.FunctionDef
"""The source of a class or of a function."""
SHORT = 5
"""Least number of words of a sentence that is a whole description."""


@cache
def module(name: str) -> ast.Module | None:
    """Return the syntax tree of a module; None if there is no such module, or no source."""
    first, *rest = name.split(".")
    try:
        spec = find_spec(first)  # imports nothing: the name has no dot
    except ValueError:  # a name that is empty, or that of a module without a file
        return None
    if spec is None:
        return None
    place = Path(next(iter(spec.submodule_search_locations or ()), spec.origin or ""), *rest)
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    return None


def definition(target: str) -> tuple[str, Definition] | None:
    """Return the module and the definition that an import path names; None if there is none."""
    home, _, name = target.rpartition(".")
    tree = module(home) if home else None
    for node in tree.body if tree else ():
        if isinstance(node, Definition) and node.name == name:
            return home, node
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return definition(f"{node.module}.{alias.name}")
    return None


def targets(node: Any) -> Iterator[str]:
    """Yield the import paths of a config, outer ones first."""
    if isinstance(node, dict):
        if isinstance(node.get(TARGET), str):
            yield node[TARGET]
        for value in node.values():
            yield from targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from targets(value)


def comment(text: str) -> str:
    """Return the comment at the beginning of a config, without Hydra's package line."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            lines.append(line.lstrip("# "))
    return " ".join(lines)


def summary(target: str) -> str:
    """Return the first paragraph of the docstring of an import path's definition; "" without."""
    found = definition(target)
    text = ast.get_docstring(found[1]) if found else None
    return (text or "").partition("\n\n")[0]


def describe(file: Path) -> str:
    """Return the description of a config: its comment, or else that of the first object it builds.

    In place of a description, the result names the fault of a file that cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
        if about := comment(text):
            return about
        built = next(targets(yaml.safe_load(text)), None)
        return summary(built) if built else ""
    except (YAMLError, SyntaxError, UnicodeDecodeError) as error:
        return f"(cannot be read: {one_line(error)})"


def first_sentence(text: str) -> str:
    """Return the first sentence of a description, in one line.

    The next sentence is added to one of fewer than `SHORT` words, such as the name of a method.
    """
    found: list[str] = []
    for sentence in re.split(r"(?<=[.!?])\s+(?=[^a-z\s]|selfplay )", " ".join(text.split())):
        found.append(sentence)
        if len(" ".join(found).split()) >= SHORT:
            break
    return " ".join(found)
