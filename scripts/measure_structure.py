#!/usr/bin/env python
"""Measure the structure of a Python package: sizes, names, docstrings, imports.

Usage: python scripts/measure_structure.py [PACKAGE_FOLDER ...]

Without arguments it measures `selfplay`. Any other package works too, so that a table can place
packages side by side. Every number comes from the syntax trees alone; no module is imported.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

CLAUSES = re.compile(r"(What|Who|Whose|Whether|How|Of|As)\b")
"""Openings of docstrings that are relative clauses instead of sentences."""


def module_name(path: Path, package: Path) -> str:
    """Return the dotted name of a source file: `selfplay/credit/__init__.py` ->
    `selfplay.credit`."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, module: str, is_package: bool, known: set[str]) -> Iterator[str]:
    """Yield the modules of the package that a module imports, in functions too."""
    own = module.split(".")
    own = own if is_package else own[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = own[: len(own) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            target = name if name in known else name.rpartition(".")[0]
            if target in known and target != module:
                yield target


def in_cycles(imports: dict[str, set[str]]) -> list[str]:
    """Return the modules that are in an import cycle, or between two cycles."""
    left = {module: set(needed) for module, needed in imports.items()}
    while free := [module for module, needed in left.items() if not needed & left.keys()]:
        for module in free:
            del left[module]
    return sorted(left)


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of the module and of its classes and functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(tree) if isinstance(node, kinds))
    yield from filter(None, map(ast.get_docstring, nodes))


def measure(package: Path) -> list[tuple[str, str]]:
    """Return the rows of the table: name and value."""
    paths = sorted(package.rglob("*.py"))
    if not paths:
        sys.exit(f"{package} has no Python files; name the folder of a package")
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]
    names = {path: module_name(path, package) for path in paths}
    known = set(names.values())
    imports = {
        names[path]: set(imported(tree, names[path], path.stem == "__init__", known))
        for path, tree in trees.items()
    }
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    texts = [text for tree in trees.values() for text in docstrings(tree)]
    clauses = sum(bool(CLAUSES.match(text)) for text in texts)
    files = list(package.glob("*.py"))
    folders = [path for path in package.iterdir() if (path / "__init__.py").is_file()]
    deepest = max(len(path.relative_to(package).parts) for path in paths)
    return [
        ("modules", f"{len(paths)}"),
        ("lines", f"{sum(lines):,}"),
        ("lines of a module, mean / median", f"{mean(lines):.0f} / {median(lines):.0f}"),
        ("lines of the longest module", f"{max(lines):,}"),
        ("public classes", f"{sum(classes.values())}"),
        ("class names used twice or more", f"{sum(n > 1 for n in classes.values())}"),
        (
            "docstrings that open with a clause",
            f"{clauses} of {len(texts)} ({clauses / len(texts):.1%})",
        ),
        ("files at the top", f"{len(files)}"),
        ("packages at the top", f"{len(folders)}"),
        ("levels of folders and module", f"{deepest}"),
        ("modules in import cycles", f"{len(in_cycles(imports))}"),
    ]


def main() -> None:
    """Print one table per package."""
    own = Path(__file__).resolve().parent.parent / "selfplay"
    for package in [Path(argument).resolve() for argument in sys.argv[1:]] or [own]:
        print(f"{package.name}")
        for name, value in measure(package):
            print(f"  {name:<38} {value}")


if __name__ == "__main__":
    main()
