"""Lines of JSON from the values of `selfplay.types`, in a fraction of the time of `json.dumps`."""

import json
import re
import secrets
from itertools import chain, zip_longest
from typing import Any

from pydantic_core import PydanticSerializationError
from pydantic_core import to_json as encode

from selfplay.number_array import NumberArray
from selfplay.types import to_json

NOT_ASCII = re.compile("[^\x00-\x7f]+")


class JsonLines:
    """A writer of lines of ASCII JSON with the same data as `to_json`.

    `Run.record` makes one per step.

    Numbers that several values share, such as the prompts of a conversation, are encoded once.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[NumberArray, str]] = {}
        """Array that was written last and its text, by the array's place in memory."""
        # The mark takes the place of an array. It is random, so no text of a model contains it.
        self._mark = secrets.token_hex(16)

    def line(self, value: Any) -> str:
        """Return plain data, which may hold values of `selfplay.types`, as one line."""
        arrays: list[str] = []

        def written(found: Any) -> str:
            if not isinstance(found, NumberArray):
                raise TypeError(f"{type(found).__name__} is no JSON data")
            arrays.append(self._text(found))
            return self._mark

        try:
            frame = encode(value, fallback=written, inf_nan_mode="constants").decode()
        except (PydanticSerializationError, UnicodeError):
            return json.dumps(value, default=to_json)  # which can escape a lone surrogate
        if not frame.isascii():
            frame = NOT_ASCII.sub(_escaped, frame)
        pieces = zip_longest(frame.split(f'"{self._mark}"'), arrays, fillvalue="")
        return "".join(chain.from_iterable(pieces))

    def _text(self, numbers: NumberArray) -> str:
        """Return an array as JSON; the text of its beginning may be known."""
        if numbers.all_ones:
            return f"[{'1,' * (len(numbers) - 1)}1]"
        if not numbers.integers:  # log-probabilities belong to one turn
            return encode(numbers.tolist(), inf_nan_mode="constants").decode()
        texts, rest = [], numbers
        while len(rest):
            known, text = self._known.get(rest.place, (rest[:0], ""))
            if not 0 < len(known) <= len(rest):
                known, text = rest, encode(rest.tolist()).decode()[1:-1]
            texts.append(text)
            rest = rest[len(known) :]
        text = ",".join(texts)
        self._known[numbers.place] = (numbers, text)
        return f"[{text}]"


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found.group())[1:-1]
