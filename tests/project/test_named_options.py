"""Tests that the configs have every option that a page, a docstring or a comment names."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.repository import ROOT

CONFIGS = ROOT / "configs"
GROUPS = {
    folder.name: {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml")}
    for folder in CONFIGS.iterdir()
    if folder.is_dir() and not folder.name.startswith("_")
}
"""The options of every config group."""
NAMED = re.compile(
    rf"(?<![\w.=/-])\+?({'|'.join(GROUPS)})=([a-z][a-z0-9_/]*[a-z0-9](?:,[a-z0-9_/]+)*)(?![\w./$\u2026])"
)
"""`group=option`, or several options of a sweep; not a file, and not an unfinished word."""
QUOTED = re.compile(rf"`({'|'.join(GROUPS)}): ([a-z][\w/]*)`")
"""`group: option`, as in a YAML file."""
READERS = {
    *("rock_paper_scissors", "thinking_player", "median", "brief", "letters", "growing_sums"),
    *("both_ends", "soft_gate", "squares", "fixed", "favourites"),
}
"""Options that a reader of the walk-throughs writes."""
REFUSED = {("docs/configs.md", "kuhn")}
"""Examples of options that are refused."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield name and text of pages, of comments of configs, and of strings and comments of code."""
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path in CONFIGS.rglob("*.yaml"):
        lines = path.read_text(encoding="utf-8").splitlines()
        yield str(path.relative_to(ROOT)), "\n".join(line.partition("#")[2] for line in lines)
    for package in ("selfplay", "arenas", "roles", "scripts"):
        for path in (ROOT / package).rglob("*.py"):
            yield str(path.relative_to(ROOT)), "\n".join(words(path))


def words(path: Path) -> Iterator[str]:
    """Yield the strings and comments of a module."""
    source = io.StringIO(path.read_text(encoding="utf-8"))
    kinds = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1))
    for token in tokenize.generate_tokens(source.readline):
        if token.type in kinds:
            yield token.string


def unknown(name: str, text: str) -> tuple[int, list[str]]:
    """Return the number of options that a text names, and those that no config group has."""
    count, bad = 0, []
    for found in [*NAMED.finditer(text), *QUOTED.finditer(text)]:
        for option in found[2].split(","):
            count += 1
            if option not in GROUPS[found[1]] | READERS and (name, option) not in REFUSED:
                bad.append(f"{name}: {found[1]}={option}")
    return count, bad


def test_an_option_that_does_not_exist_is_found() -> None:
    text = "Use `credit: library` or `credit: trr`, credit=rloo,nothing and my_games.credit=any."
    assert unknown("a", text) == (4, ["a: credit=nothing", "a: credit=library"])


def test_every_named_option_exists() -> None:
    counted = [unknown(name, text) for name, text in texts()]
    assert sum(count for count, _ in counted) > 300
    bad = [each for _, found in counted for each in found]
    assert not bad, "\n".join(bad)
