"""A memory bank on a time line: every operation of an episode, and the life of each entry.

Derived from the record alone: the task has the facts, the manager's turns have its operations, and
their verdicts say which of them the arena took.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfplay.run.report.transcripts import shorten
from selfplay.types import Episode, Turn

MANAGER = "memory_manager"
READER = "answer_agent"
"""Roles; in a mixture the part's name stands before them."""
TAKEN = ("add", "update", "delete", "noop", "several")
"""Verdicts of turns whose operations were done."""
KEPT = "EARLIER"
"""What a line says of an entry that was there before the episode."""


LONGEST_ENTRY = 2_000
"""Characters of an entry that are shown; the arena allows 1000, unless told otherwise."""
MOST_FACTS = 1_000
"""Facts that are shown."""


@dataclass(frozen=True, kw_only=True)
class MemoryEvent:
    """One operation."""

    fact: int
    """The number of the fact that led to it, which is its place on the time line."""
    event: str
    """ADD, UPDATE, DELETE, NOOP, EARLIER; or REFUSED, where it was none."""
    entry: str = ""
    """The entry that it is about."""
    before: str = ""
    """What the entry said."""
    after: str = ""
    """What it says now."""
    reason: str = ""
    """Why it was refused."""


@dataclass(kw_only=True)
class EntryHistory:
    """An entry from its first fact on."""

    entry: str
    """Its id."""
    moments: list[MemoryEvent] = field(default_factory=list)
    """What was done with it, in order."""
    used: list[str] = field(default_factory=list)
    """Agents that named it for their answer."""

    @property
    def end(self) -> int | None:
        """The fact at which it was deleted; None where it stayed."""
        last = self.moments[-1]
        return last.fact if last.event == "DELETE" else None

    @property
    def text(self) -> str:
        """What it said last."""
        return self.moments[-1].after or self.moments[-1].before


@dataclass(frozen=True, kw_only=True)
class MemoryTimeline:
    """What became of a bank."""

    facts: Sequence[Mapping[str, Any]]
    """All facts, by number: the earlier ones first."""
    moments: Sequence[Sequence[MemoryEvent]]
    """By fact."""
    lives: Sequence[EntryHistory]
    """In the order in which they began."""


def time_line(episode: Episode) -> MemoryTimeline | None:
    """The bank's; None of an episode without one."""
    payload: Any = episode.task.payload
    if isinstance(payload.get("task"), dict):  # of a mixture: the part's own task
        payload = payload["task"].get("payload", {})
    managed = [turn for turn in episode.turns if turn.role.endswith(MANAGER)]
    facts, earlier = payload.get("facts"), payload.get("earlier", [])
    if not managed or not isinstance(facts, list) or not isinstance(earlier, list):
        return None
    known = [fact if isinstance(fact, dict) else {} for fact in (*earlier, *facts)]
    lives: dict[str, EntryHistory] = {}
    moments = [
        [_do(lives, place, {"event": "ADD"}, str(place), _text(fact), KEPT)]
        for place, fact in enumerate(known[: min(len(earlier), MOST_FACTS)])
    ]
    for place, turn in enumerate(managed[: MOST_FACTS - len(moments)], len(earlier)):
        fact = _text(known[place]) if place < len(known) else ""
        moments.append(_decided(lives, place, turn, fact))
    for turn in episode.turns:
        if turn.role.endswith(READER):
            for entry in _named(turn):
                if entry in lives:
                    lives[entry].used.append(f"{turn.agent} ({turn.info.get('verdict', '?')})")
    return MemoryTimeline(facts=known, moments=moments, lives=list(lives.values()))


def _decided(
    lives: dict[str, EntryHistory], place: int, turn: Turn, fact: str
) -> list[MemoryEvent]:
    """What a turn of the manager did."""
    verdict = str(turn.info.get("verdict", turn.info.get("invalid", "nothing was noted")))
    operations = _operations(turn.action) if verdict in TAKEN else None
    if operations is None:
        return [MemoryEvent(fact=place, event="REFUSED", reason=verdict)]
    done = [
        _do(lives, place, each, f"{place}.{number}" if number else str(place), fact)
        for number, each in enumerate(operations)
    ]
    return done or [MemoryEvent(fact=place, event="NOOP")]


def _do(
    lives: dict[str, EntryHistory],
    place: int,
    operation: Mapping[str, str],
    fresh: str,
    fact: str,
    called: str = "",
) -> MemoryEvent:
    """An operation: `fresh` is the id of an entry that it may add."""
    event = operation["event"]
    entry = fresh if event == "ADD" else operation.get("id", "")
    before = lives[entry].text if entry in lives else ""
    text = "" if event == "DELETE" else operation.get("text", "").strip() or fact
    moment = MemoryEvent(
        fact=place,
        event=called or event,
        entry=entry,
        before=before,
        after=shorten(text, LONGEST_ENTRY),
    )
    lives.setdefault(entry, EntryHistory(entry=entry)).moments.append(moment)
    return moment


def _operations(action: str | None) -> list[Mapping[str, str]] | None:
    """Those that do something, of one operation or of a list; None where it is neither."""
    found = _json(action)
    if isinstance(found, dict) and "memory" in found:
        found = found["memory"]
    listed = found if isinstance(found, list) else [found]
    plain = [
        {key: value for key, value in each.items() if isinstance(value, str)}
        for each in listed
        if isinstance(each, dict)
    ]
    if len(plain) < len(listed) or not all("event" in each for each in plain):
        return None
    return [each for each in plain if each["event"] not in ("NOOP", "NONE")]


def _named(turn: Turn) -> list[str]:
    """The entries that an answer names, each once."""
    found = _json(turn.action)
    named = found.get("memories") if isinstance(found, dict) else None
    listed = named if isinstance(named, list) else []
    return list(dict.fromkeys(each for each in listed if isinstance(each, str)))


def _json(action: str | None) -> Any:
    try:
        return json.loads(action or "")
    except (ValueError, RecursionError):
        return None


def _text(fact: Mapping[str, Any]) -> str:
    return str(fact.get("text", ""))
