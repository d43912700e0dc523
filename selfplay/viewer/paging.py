"""Lists that are cut into pages, and the links between these."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

PAGE = 50
"""Entries that a page lists."""


def links(
    page: int,
    total: int,
    query: Mapping[str, Any] | Sequence[tuple[str, Any]],
    *,
    size: int = PAGE,
) -> list[tuple[int, str]]:
    """Pages (from 0) that get a link, each with its query: the first, the last, and near ones.

    `size` is the number of entries of a page.
    """
    pages = -(-total // size)
    near = {0, *range(max(0, page - 3), min(pages, page + 4)), max(0, pages - 1)}
    fields = list(query.items() if isinstance(query, Mapping) else query)
    return [(number, urlencode([*fields, ("page", number)])) for number in sorted(near)]
