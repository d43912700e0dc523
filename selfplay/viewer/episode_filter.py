"""The filter of a list of episodes, its SQL condition, and the links between pages of a list."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from selfplay.viewer.usage_index import CellKey
from selfplay.viewer.usage_index import condition as cell_condition

PAGE = 50
"""Number of entries of a page."""


@dataclass(frozen=True, kw_only=True)
class EpisodeFilter:
    """A filter of episodes; an empty field selects all of them."""

    role: str = ""
    """Role that took a turn; `outcome` and `invalid` are then about this role's turns."""
    status: str = ""
    """Status of the episode: finished, truncated, failed or unreadable."""
    outcome: str = ""
    """Outcome: "paid" (the sum of the rewards is above 0) or "unpaid"."""
    invalid: bool = False
    """True selects episodes with an invalid action."""
    said: str = ""
    """Words that all occur in what the agents said: in the completions of one episode."""
    text: str = ""
    """Words that all occur in the prompts, the completions or the task id."""
    step: int | None = None
    """Step that played the episode."""
    cell: CellKey | None = None
    """Cell of a table of words or moves at this step."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of the address that asks for the same episodes."""
        named = {**vars(self), "cell": None, **(vars(self.cell) if self.cell else {})}
        return {
            name: 1 if value is True else value
            for name, value in named.items()
            if value not in ("", None, False)
        }


@dataclass(frozen=True, kw_only=True)
class SortOrder:
    """The order of a list. The default is the newest step first."""

    by: str = ""
    """Name of the sorted values; empty: the step."""
    descending: bool = True
    """True puts the highest value first."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of the address that asks for this order."""
        if not self.by:
            return {}
        return {"sort": self.by, **({"down": 1} if self.descending else {})}


def condition(asked: EpisodeFilter) -> tuple[str, tuple[Any, ...]]:
    """Return the SQL condition of a filter, over the table `episodes e`, and its values."""
    conditions: list[str] = []
    values: list[Any] = []
    if asked.cell is not None:
        inner, found = cell_condition(asked.step or 0, asked.cell)
        conditions.append(inner)
        values += found
    elif asked.step is not None:
        conditions.append("e.step = ?")
        values.append(asked.step)
    if asked.status:
        conditions.append("e.status = ?")
        values.append(asked.status)
    own = []
    if asked.outcome:
        own.append("{}reward > 0" if asked.outcome == "paid" else "{}reward <= 0")
    if asked.invalid:
        own.append("{}invalid > 0")
    if asked.role:
        inner = " AND ".join(["r.role = ?", *(condition.format("r.") for condition in own)])
        conditions.append(f"e.id IN (SELECT r.episode FROM roles r WHERE {inner})")
        values.append(asked.role)
    else:
        conditions += [condition.format("e.") for condition in own]
    for words, column in ((asked.said, "{said} : "), (asked.text, "")):
        if quoted := query_of(words):
            conditions.append("e.id IN (SELECT rowid FROM words WHERE words MATCH ?)")
            values.append(f"{column}({quoted})")
    return (f"WHERE {' AND '.join(conditions)}" if conditions else ""), tuple(values)


def query_of(text: str) -> str:
    """Return the full-text query for all words of a text; empty if it has none."""
    # Each word is quoted, because the text must not act as a query language.
    quoted = (word.replace('"', '""') for word in text.replace("\0", " ").split())
    return " ".join(f'"{word}"' for word in quoted)


def links(
    page: int,
    total: int,
    query: Mapping[str, Any] | Sequence[tuple[str, Any]],
    *,
    size: int = PAGE,
) -> list[tuple[int, str]]:
    """Return (page, query) of the pages, from 0, that get a link: the first, last and near ones.

    Args:
        page: The current page.
        total: Number of entries of the list.
        query: Other fields of the query.
        size: Number of entries of a page.
    """
    pages = -(-total // size)
    near = {0, *range(max(0, page - 3), min(pages, page + 4)), max(0, pages - 1)}
    fields = list(query.items() if isinstance(query, Mapping) else query)
    return [(number, urlencode([*fields, ("page", number)])) for number in sorted(near)]
