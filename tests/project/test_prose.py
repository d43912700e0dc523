"""Plain English: how docstrings open, and words that readers would have to decode.

The limits may only become stricter: lower a limit when the text has improved, never raise one.
"""

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tests.helpers.repository import ROOT

PACKAGES = ("selfplay", "roles", "arenas")
OPENINGS = re.compile(r"(What|Who|Whose|Whom|Whether|How|Of|As|Those|By|Where|Since)\b")
"""Openings of relative clauses: a docstring is a sentence or a noun phrase instead."""
DIALECT = re.compile(
    r"\b(figures?|shares? of|whoever|nobody|somebody|by whom|to whom|told|tells of|as always|heed"
    r"|magnet|belated|ballot|behind|beside it|it is told|stands? for nothing)\b",
    re.IGNORECASE,
)
"""Words of a private dialect. Usual words: metric, fraction of, no one, reported, after."""
ALLOWED = re.compile(r"figures/|matplotlib\.figure|\bFigure\b")
"""The folder of plots, and the class of matplotlib."""
MOST_OPENINGS = 0.0
MOST_DIALECT = 0


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring of a file, with those of attributes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = getattr(statement, "value", None)
            text = value.value if isinstance(value, ast.Constant) else None
            if isinstance(statement, ast.Expr) and isinstance(text, str):
                yield statement.lineno, text


def sources() -> list[Path]:
    """All Python files of the library."""
    return sorted(chain.from_iterable((ROOT / package).rglob("*.py") for package in PACKAGES))


def test_docstrings_open_with_a_noun_or_a_verb() -> None:
    every = [(path, line, text) for path in sources() for line, text in docstrings(path)]
    bad = [f"{path}:{line}: {text[:60]!r}" for path, line, text in every if OPENINGS.match(text)]
    assert len(bad) <= MOST_OPENINGS * len(every), f"{len(bad)} of {len(every)}:\n" + "\n".join(bad)


def test_the_words_are_those_of_the_field() -> None:
    files = [*sources(), *(ROOT / "configs").rglob("*.yaml"), *(ROOT / "docs").glob("*.md")]
    bad = [
        f"{path}:{number}: {found[0]!r}"
        for path in [*files, ROOT / "README.md"]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (found := DIALECT.search(ALLOWED.sub("", line)))
    ]
    assert len(bad) <= MOST_DIALECT, f"{len(bad)} lines:\n" + "\n".join(bad)
