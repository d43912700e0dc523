"""A move of a conversation in which tools change records: words, or JSON with words and calls."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from selfplay.types import Action, ToolCall

MOST_CALLS = 100
"""Largest number of calls of one move that an arena reads."""


def succeeded(
    calls: Sequence[ToolCall], names: Collection[str]
) -> list[tuple[str, dict[str, Any]]]:
    """Return names and arguments of the calls of the named operations that succeeded."""
    done = [call for call in calls if not call.error and call.name in names]
    return [(call.name, json.loads(call.arguments)) for call in done]


def packed(words: str, calls: Sequence[ToolCall], names: Collection[str]) -> Action:
    """Return JSON with the words and the calls that succeeded.

    Without such calls, return the words alone, unless they begin like JSON themselves.
    """
    made = succeeded(calls, names)
    if not made and not words.lstrip().startswith("{"):
        return words
    return json.dumps({"said": words, "calls": made})


def unpacked(
    action: Action, names: Collection[str]
) -> tuple[str, list[tuple[str, Mapping[str, Any]]]]:
    """Return words and calls of a move that `packed` made; any other text is words alone."""
    try:
        given = json.loads(action) if action.startswith("{") else None
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or given.keys() != {"said", "calls"}:
        return action, []
    said, calls = given["said"], given["calls"]
    if not isinstance(said, str) or not isinstance(calls, list):
        return action, []
    found: list[tuple[str, Mapping[str, Any]]] = []
    for call in calls[:MOST_CALLS]:
        match call:
            case [str(name), dict(arguments)] if name in names:
                found.append((name, arguments))
    return said, found
