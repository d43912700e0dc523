"""Listeners of an episode: turns whose agent was shown the message of an earlier turn."""

import re
from collections.abc import Sequence

from selfplay.types import Turn

MOST_TURNS = 2000
"""Number of turns of an episode that are looked at."""
LONGEST = 2000
"""Number of characters of a message that are compared."""


def heard(turns: Sequence[Turn]) -> list[list[int]]:
    """Return, for each turn, the indices of the earlier turns whose message its agent was shown.

    Only messages that other agents read count (`Turn.spoken`), and only those since the agent's
    previous turn: a turn records just the new part of its prompt. A short message, such as one
    letter, may stand there for another reason.
    """
    found: list[list[int]] = [[] for _ in turns]
    latest: dict[str, int] = {}
    for place, turn in enumerate(turns[:MOST_TURNS]):
        first = latest.get(turn.agent, 0)
        shown = "\n".join(str(message.get("content", "")) for message in turn.messages)
        found[place] = [
            other
            for other in range(first, place)
            if turns[other].spoken and turns[other].agent != turn.agent
            if _contains(shown, str(turns[other].action))
        ]
        latest[turn.agent] = place
    return found


def _contains(shown: str, message: str) -> bool:
    """Return True if a message stands in a text as whole words."""
    words = message.strip()[:LONGEST]
    return bool(words) and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", shown) is not None


def heard_by(heard: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return, for each turn, the later turns that heard it, from the result of `heard`."""
    found: list[list[int]] = [[] for _ in heard]
    for place, others in enumerate(heard):
        for other in others:
            found[other].append(place)
    return found
