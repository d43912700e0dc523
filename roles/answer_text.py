"""Parts of completions that several roles parse in the same way."""

import json
import re

from selfplay.types import InvalidAction

REFERENCE = re.compile(r"\[([0-9.]{1,20})\]")
"""Pattern of the id of a memory in square brackets, such as [3] or [3.1]."""


def check_json(text: str) -> str:
    """Return `text` if it is JSON and nothing else; raises `InvalidAction` "not_json"."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidAction("not_json") from None
    return text
