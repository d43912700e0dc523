"""Lists that are cut into pages, and the links between these."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

PAGE = 50
"""Entries that a page lists."""


def links(page: int, total: int, query: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Pages (from 0) worth a link, each with its query: the first, the last, and the near ones."""
    pages = -(-total // PAGE)
    near = {0, *range(max(0, page - 3), min(pages, page + 4)), max(0, pages - 1)}
    return [(number, urlencode({**query, "page": number})) for number in sorted(near)]
