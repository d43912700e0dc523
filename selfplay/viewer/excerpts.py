"""Short texts of lists: one line of what was shown or said, and marks around found words."""

import re
import sqlite3
from collections.abc import Sequence

from selfplay.study.stats.usage import view_of
from selfplay.types import Episode, Turn
from selfplay.viewer.episode_filter import query_of

HEAD, TAIL = 90, 30
"""Number of characters at the start and the end of a long text that a line keeps."""
GAP = " ... "
"""Replacement of the middle of a long text."""
AROUND = 24
"""Number of words of an excerpt."""
OPEN, CLOSE = "\ue000", "\ue001"
"""Characters of the private use area that enclose a found word while an excerpt is made."""
_NO_MARKS = str.maketrans(dict.fromkeys((OPEN, CLOSE), " "))

Marked = tuple[tuple[str, bool], ...]
"""((text, True if the text was searched for), ...)."""


def line_of(text: str, head: int = HEAD, tail: int = TAIL) -> str:
    """Return a text in one line; a long one keeps `head` and `tail` characters."""
    # 20 times the kept characters suffice for all but texts of spaces, and a text may be huge.
    if len(text) > 40 * (head + tail):
        text = f"{text[: 20 * head]} {text[-20 * tail :]}"
    line = " ".join(text.split())
    whole = len(line) <= head + len(GAP) + tail
    return line if whole else f"{line[:head].rstrip()}{GAP}{line[-tail:].lstrip()}"


def last_words(episode: Episode) -> dict[str, tuple[str, str, bool]]:
    """Return role to (shown, said, valid) of the role's last move, in the order of first turns.

    `shown` is the text of the new messages of the move, without system messages. `said` is the
    action, or the whole completion if it is no action. Both are one line.
    """
    found: dict[str, tuple[Turn, Turn]] = {}
    begun: dict[str, Turn] = {}
    for turn in episode.turns:
        opening = begun.setdefault(turn.agent, turn)  # the turn before the results of tools
        if turn.final:
            del begun[turn.agent]
        found[turn.role] = (opening, turn)
    return {
        role: (
            line_of(view_of(opening.messages)),
            line_of(turn.text if turn.action is None else turn.action),
            turn.action is not None,
        )
        for role, (opening, turn) in found.items()
    }


def marked(texts: Sequence[str], words: str) -> list[Marked]:
    """Return an excerpt of each text around the words, with marks; empty for a text without any.

    The words are found as the index of episodes finds them.
    """
    quoted = query_of(words)
    if not quoted or not texts:
        return [()] * len(texts)
    either = quoted.replace('" "', '" OR "')
    base = sqlite3.connect(":memory:")
    try:
        base.execute("CREATE VIRTUAL TABLE words USING fts5(text)")
        base.executemany(
            "INSERT INTO words (rowid, text) VALUES (?, ?)",
            [(number, text.translate(_NO_MARKS)) for number, text in enumerate(texts)],
        )
        found = dict(
            base.execute(
                f"SELECT rowid, snippet(words, 0, ?, ?, ?, {AROUND}) FROM words WHERE words "
                "MATCH ?",
                (OPEN, CLOSE, GAP, either),
            ).fetchall()
        )
    finally:
        base.close()
    return [_pieces(found.get(number, "")) for number in range(len(texts))]


def found_in(text: str, words: str) -> Marked:
    """Return an excerpt around the first of the words, with marks; empty without any of them.

    A word is found in any case and within other words.
    """
    parts = [re.escape(part) for part in words.split()]
    first = re.search("|".join(parts), text, re.IGNORECASE) if parts else None
    if first is None:
        return ()
    begin, end = max(first.start() - HEAD, 0), first.end() + HEAD
    cut = text[begin:end].translate(_NO_MARKS)
    around = re.sub("|".join(parts), lambda hit: f"{OPEN}{hit[0]}{CLOSE}", cut, flags=re.IGNORECASE)
    return _pieces(f"{GAP if begin else ''}{around}{GAP if end < len(text) else ''}")


def _pieces(snippet: str) -> Marked:
    """Split an excerpt with marks into pieces."""
    pieces: list[tuple[str, bool]] = []
    for number, piece in enumerate(snippet.split(OPEN)):
        hit, _, rest = piece.rpartition(CLOSE) if number else ("", "", piece)
        pieces += [(hit[: 4 * HEAD], True), (rest[: 4 * HEAD], False)]
    return tuple((text, hit) for text, hit in pieces if text)
