"""Differences between the texts of siblings, word by word."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal, TypeAlias

from selfplay.types import Turn

MOST_WORDS = 600
"""Largest number of words and spaces of one text that is compared."""
MOST_COMPARED = 20_000
"""Largest number of words and spaces that one page compares."""
_WORD = re.compile(r"\s+|\S+")

Change: TypeAlias = Literal["same", "added", "removed"]
Pieces: TypeAlias = tuple[tuple[str, Change], ...]
"""Pieces of a text with their changes: removed pieces are those of the other text alone."""


def word_diff(before: str, after: str) -> Pieces | None:
    """Return the pieces of `after`, and those of `before` that it lacks.

    The result is None if a text has more than `MOST_WORDS` words and spaces.
    """
    old, new = _words(before), _words(after)
    if max(len(old), len(new)) > MOST_WORDS:
        return None
    pieces: list[tuple[str, Change]] = []
    for kind, begin, end, first, last in SequenceMatcher(None, old, new).get_opcodes():
        if kind == "equal":
            pieces.append(("".join(new[first:last]), "same"))
            continue
        if end > begin:
            pieces.append(("".join(old[begin:end]), "removed"))
        if last > first:
            pieces.append(("".join(new[first:last]), "added"))
    return tuple(pieces)


def turn_diffs(base: Sequence[Turn], turns: Sequence[Turn], left: int) -> list[Pieces | None]:
    """Return the difference of each turn's text from that of the turn at the same place in `base`.

    A turn of another agent, and one without a counterpart, is not compared; nor are turns once
    `left` words and spaces were compared.
    """
    found: list[Pieces | None] = []
    for place, turn in enumerate(turns):
        other = base[place] if place < len(base) else None
        if other is None or other.agent != turn.agent:
            found.append(None)
            continue
        left -= size_of(other) + size_of(turn)
        found.append(word_diff(other.text, turn.text) if left >= 0 else None)
    return found


def size_of(turn: Turn) -> int:
    """Return the number of words and spaces of a turn's text, at most `MOST_WORDS` + 1."""
    return len(_words(turn.text))


def _words(text: str) -> list[str]:
    """Return the first words and spaces of a text, one more than is compared."""
    found: list[str] = []
    for word in _WORD.finditer(text):
        found.append(word[0])
        if len(found) > MOST_WORDS:
            break
    return found
