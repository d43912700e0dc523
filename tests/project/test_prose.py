"""Tests of plain English: openings of docstrings, and words that readers would not know.

The limits may only become stricter: lower a limit when the text has improved, never raise one.
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.helpers.repository import ROOT

PACKAGES = ("selfplay", "roles", "arenas")
OTHERS = ("scripts", "tests")
"""Folders whose docstrings, comments and names are checked, and not their other texts."""
OPENINGS = re.compile(r"(What|Who|Whose|Whom|Whether|How|Of|As|Those|By|Where|Since)\b")
"""Openings of relative clauses: a docstring is a sentence or a noun phrase instead."""
DIALECT = re.compile(
    r"\b(figures?|shares? of|whoever|nobody|somebody|by whom|to whom|told|tells of|as always|heed"
    r"|magnet|belated|ballot|behind|beside|it is told|stands? for nothing)\b",
    re.IGNORECASE,
)
"""Words of a private dialect. Usual words: metric, fraction of, no one, reported, after."""
ALLOWED = re.compile(r"figures/|matplotlib\.figure|\bFigure\b|\bfigure files\b")
"""The folder of plots, and the class of matplotlib."""
MOST_OPENINGS = 0.0
MOST_DIALECT = 0


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring of a file, also of attributes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = getattr(statement, "value", None)
            text = value.value if isinstance(value, ast.Constant) else None
            if isinstance(statement, ast.Expr) and isinstance(text, str):
                yield statement.lineno, text


def comments_and_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every comment and name of a file; the parts of names are words."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
            elif token.type == tokenize.NAME and token.string != "figure":  # matplotlib.figure
                yield token.start[0], token.string.replace("_", " ")


def sources(*folders: str) -> list[Path]:
    """Return all Python files of these folders."""
    return sorted(chain.from_iterable((ROOT / folder).rglob("*.py") for folder in folders))


def test_docstrings_open_with_a_noun_or_a_verb() -> None:
    files = sources(*PACKAGES, *OTHERS)
    every = [(path, line, text) for path in files for line, text in docstrings(path)]
    bad = [f"{path}:{line}: {text[:60]!r}" for path, line, text in every if OPENINGS.match(text)]
    assert len(bad) <= MOST_OPENINGS * len(every), f"{len(bad)} of {len(every)}:\n" + "\n".join(bad)


def test_the_words_are_those_of_the_field() -> None:
    files = [
        *sources(*PACKAGES),
        *(ROOT / "configs").rglob("*.yaml"),
        *(ROOT / "docs").glob("*.md"),
    ]
    bad = [
        f"{path}:{number}: {found[0]!r}"
        for path in [*files, ROOT / "README.md"]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (found := DIALECT.search(ALLOWED.sub("", line)))
    ]
    assert len(bad) <= MOST_DIALECT, f"{len(bad)} lines:\n" + "\n".join(bad)


@pytest.mark.parametrize("folder", OTHERS)
def test_tests_and_scripts_use_the_words_of_the_field(folder: str) -> None:
    bad = [
        f"{path}:{line}: {found[0]!r}"
        for path in sources(folder)
        for line, text in chain(docstrings(path), comments_and_names(path))
        if (found := DIALECT.search(ALLOWED.sub("", text)))
    ]
    assert not bad, f"{len(bad)} places:\n" + "\n".join(bad)
