"""Timeline of a memory bank: all operations of an episode, and the history of each entry.

All of it comes from the recorded episode: the task has the facts, or the turns of a fact extractor
or a summarizer if there is one, and the manager's turns have the operations. Verdicts say which
facts and operations the arena accepted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from selfplay.run.report.transcripts import shorten
from selfplay.types import Episode, Turn

EXTRACTOR = "fact_extractor"
SUMMARIZER = "summarizer"
MANAGER = "memory_manager"
READER = "answer_agent"
"""Endings of the roles' names; in a mixture they follow the name of the part."""
TAKEN = ("add", "update", "delete", "noop", "several")
"""Verdicts of turns whose operations the arena accepted."""
KEPT = "EARLIER"
"""Event of an entry that existed before the episode."""


LONGEST_ENTRY = 2_000
"""Largest number of characters shown of an entry; the arena's default limit is 1000."""
MOST_FACTS = 1_000
"""Largest number of facts shown."""


@dataclass(frozen=True, kw_only=True)
class MemoryEvent:
    """An operation on the bank."""

    fact: int
    """Index of the fact that led to the operation, which is its position on the timeline."""
    event: str
    """ADD, UPDATE, DELETE, NOOP, EARLIER, or REFUSED for a turn without a valid operation."""
    entry: str = ""
    """Id of the entry; empty if there is none."""
    before: str = ""
    """Text of the entry before the operation."""
    after: str = ""
    """Text of the entry after the operation."""
    reason: str = ""
    """Reason for the refusal."""


@dataclass(kw_only=True)
class EntryHistory:
    """All operations on one entry."""

    entry: str
    """Id of the entry."""
    moments: list[MemoryEvent] = field(default_factory=list)
    """Operations on the entry, in time order."""
    used: list[str] = field(default_factory=list)
    """Agents that cited the entry in their answers, with the verdicts on these."""

    @property
    def end(self) -> int | None:
        """Index of the fact at which the entry was deleted; None if it was not."""
        last = self.moments[-1]
        return last.fact if last.event == "DELETE" else None

    @property
    def text(self) -> str:
        """The entry's last text."""
        return self.moments[-1].after or self.moments[-1].before


@dataclass(frozen=True, kw_only=True)
class MemoryTimeline:
    """The history of a memory bank over an episode."""

    facts: Sequence[Mapping[str, Any]]
    """All facts; those from before the episode come first."""
    moments: Sequence[Sequence[MemoryEvent]]
    """Operations, one sequence per fact."""
    lives: Sequence[EntryHistory]
    """Histories of the entries, in the order of their creation."""


def time_line(episode: Episode) -> MemoryTimeline | None:
    """Return the timeline of an episode's memory bank; None for an episode without one."""
    payload: Any = episode.task.payload
    if isinstance(payload.get("task"), dict):  # a mixture: the task of the part
        payload = payload["task"].get("payload", {})
    managed = [turn for turn in episode.moves() if turn.role.endswith(MANAGER)]
    facts, earlier = payload.get("facts"), payload.get("earlier", [])
    if not managed or not isinstance(facts, list) or not isinstance(earlier, list):
        return None
    read = [turn for turn in episode.moves() if turn.role.endswith(EXTRACTOR)]
    facts = _extracted(read, facts) if read else facts
    written = [turn for turn in episode.moves() if turn.role.endswith(SUMMARIZER)]
    facts = _summaries(written, facts) if written else facts
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


def _extracted(read: Sequence[Turn], said: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the facts that an extractor took from the turns of the dialogue, in order."""
    facts: list[Mapping[str, Any]] = []
    for turn, spoken in zip(read, said, strict=False):
        found = _json(turn.action) if turn.info.get("verdict") == "facts" else None
        listed = found.get("facts") if isinstance(found, dict) else None
        texts = listed if isinstance(listed, list) else []
        lines = dict.fromkeys(" ".join(text.split()) for text in texts if isinstance(text, str))
        origin = spoken if isinstance(spoken, dict) else {}
        facts += [{**origin, "text": line} for line in lines]
    return facts


def _summaries(written: Sequence[Turn], said: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the summaries that a summarizer wrote of the sessions of the dialogue, in order."""
    spoken = [turn if isinstance(turn, dict) else {} for turn in said]
    sessions = [
        {"speaker": speaker, "time": time}
        for time, turns in groupby(spoken, key=lambda turn: str(turn.get("time", "")))
        for speaker in dict.fromkeys(str(turn.get("speaker", "")) for turn in turns)
    ]
    facts: list[Mapping[str, Any]] = []
    for turn, session in zip(written, sessions, strict=False):
        found = _json(turn.action) if turn.info.get("verdict") == "facts" else None
        listed = found.get("extracted_memories") if isinstance(found, dict) else None
        memories = listed if isinstance(listed, list) else []
        texts = [memory.get("summary") for memory in memories if isinstance(memory, dict)]
        lines = dict.fromkeys(" ".join(text.split()) for text in texts if isinstance(text, str))
        facts += [{**session, "text": line} for line in lines]
    return facts


def _decided(
    lives: dict[str, EntryHistory], place: int, turn: Turn, fact: str
) -> list[MemoryEvent]:
    """Apply the operations of a manager's turn to `lives` and return them."""
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
    """Apply an operation to `lives` and return it.

    Args:
        lives: Id to history of each entry; changed in place.
        place: Index of the fact.
        operation: Fields of the operation.
        fresh: Id of the entry that an ADD creates.
        fact: Text of the fact, which is the default text of the entry.
        called: Name of the event, if not that of the operation.
    """
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
    """Parse an operation or a list of operations, without no-ops; None if it is neither."""
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
    """Return the ids of the entries that an answer cites, without duplicates."""
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
