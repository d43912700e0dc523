"""The list in the JSON object that an agent of the memory arena writes."""

import json
from typing import Any


def read_list(action: str | None, key: str, error: type[ValueError]) -> list[Any]:
    """Return the list of an action {key: [...]}.

    Raises `error` with the name of the reason: malformed (no action), not_json, bad_form (no
    object, other keys, or no list).
    """
    if action is None:
        raise error("malformed")
    try:
        data = json.loads(action)
    except (ValueError, RecursionError):
        raise error("not_json") from None
    found = data[key] if isinstance(data, dict) and set(data) == {key} else None
    if not isinstance(found, list):
        raise error("bad_form")
    return found
