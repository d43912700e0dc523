"""Memory bank of Memory-R1: entries, and the operations on them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arenas.quotes import in_one_line

EVENTS = ("ADD", "UPDATE", "DELETE", "NOOP")
SYNONYMS = {"NONE": "NOOP"}
"""Event name in the paper's prompt to the event name in the paper's text."""
KEYS = frozenset({"event", "id", "text", "old_memory"})


class OperationError(ValueError):
    """Invalid operation on the bank; the argument is the name of the reason."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Statement of a dialogue, by or about a speaker."""

    number: int
    """Index in the dialogue, from 0."""
    text: str
    """Text of the statement."""
    speaker: str = ""
    """Speaker whose memories contain the fact."""
    time: str = ""
    """Time of the statement, in the dialogue's own format."""


@dataclass(frozen=True, kw_only=True)
class MemoryEntry:
    """One entry of the memory bank."""

    id: str
    """Id made from the number of the fact that added it, so that omitting an operation does not
    change other ids."""
    text: str
    """Text of the memory."""
    speaker: str = ""
    """Speaker of the facts."""
    time: str = ""
    """Time of the last change."""
    old: tuple[str, ...] = ()
    """Earlier texts, the oldest first."""
    sources: tuple[int, ...] = ()
    """Numbers of the facts from which the text may come."""

    def rendered(self) -> str:
        """Return the paper's form: the time, a colon, the text."""
        return f"{self.time}: {self.text}" if self.time else self.text


@dataclass(frozen=True, kw_only=True)
class MemoryOperation:
    """One operation of a manager on the bank."""

    event: str
    """One of `EVENTS`."""
    id: str = ""
    """Id of the entry that UPDATE or DELETE changes."""
    text: str = ""
    """Text that ADD or UPDATE writes; if empty, the text of the fact."""


def read_operations(text: str) -> list[MemoryOperation]:
    """Return the operations in a manager's JSON, without NOOPs.

    {"memory": [{"id": "3", "text": "...", "event": "UPDATE", "old_memory": "..."}, ...]} is the
    paper's form; a single such object is one operation. Raises OperationError: not_json,
    bad_form (other keys, or values that are no strings), unknown_event, no_id.
    """
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        raise OperationError("not_json") from None
    if isinstance(data, dict) and set(data) == {"memory"}:
        data = data["memory"]
    found = [_operation(item) for item in (data if isinstance(data, list) else [data])]
    return [operation for operation in found if operation.event != "NOOP"]


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


def _operation(data: Any) -> MemoryOperation:
    if not isinstance(data, dict) or not set(data) <= KEYS or "event" not in data:
        raise OperationError("bad_form")
    if not all(isinstance(value, str) for value in data.values()):
        raise OperationError("bad_form")
    event = SYNONYMS.get(data["event"], data["event"])
    if event not in EVENTS:
        raise OperationError("unknown_event")
    if event in ("UPDATE", "DELETE") and not data.get("id"):
        raise OperationError("no_id")
    # JSON escapes can contain invalid text, such as lone surrogates.
    text = in_one_line(data.get("text", ""))
    return MemoryOperation(event=event, id=data.get("id", ""), text=text)


def read_answer(action: str | None) -> tuple[str | None, list[str]]:
    """Return the answer and the ids of the memories that it names; (None, []) if it is invalid.

    The form is {"answer": "...", "memories": ["3", ...]}.
    """
    try:
        data = json.loads(action or "")
        answer, named = data["answer"], data["memories"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None, []
    if not isinstance(answer, str) or not answer.strip() or not isinstance(named, list):
        return None, []
    if not all(isinstance(name, str) for name in named):
        return None, []
    return answer, named


@dataclass(kw_only=True)
class MemoryBank:
    """Entries by id, in the order in which they were added."""

    capacity: int = 0
    """Maximum number of entries; 0 is no limit."""
    longest: int = 1000
    """Maximum characters of an entry's text; it bounds later prompts."""
    entries: dict[str, MemoryEntry] = field(default_factory=dict)
    """Current entries by id."""

    def apply(
        self,
        operations: Sequence[MemoryOperation],
        fact: Fact,
        *,
        known: Iterable[str] | None = None,
    ) -> None:
        """Apply all operations for a fact, or none of them.

        `known` are the ids that may be named; None: all ids. Raises
        OperationError: unknown_id, id_taken (an ADD that names an entry), too_long, full.
        """
        named = set(self.entries if known is None else known)
        entries = dict(self.entries)
        for number, operation in enumerate(operations):
            text = operation.text or fact.text
            if operation.event in ("ADD", "UPDATE") and len(text) > self.longest:
                raise OperationError("too_long")
            if operation.event == "ADD":
                if operation.id in entries:
                    raise OperationError("id_taken")
                if self.capacity and len(entries) >= self.capacity:
                    raise OperationError("full")
                entry = _added(fact, text, number)
                entries[entry.id] = entry
            elif operation.id not in named or operation.id not in entries:
                raise OperationError("unknown_id")
            elif operation.event == "DELETE":
                del entries[operation.id]
            else:
                entries[operation.id] = _updated(entries[operation.id], fact, operation.text)
        self.entries = entries

    def of(self, speaker: str) -> list[MemoryEntry]:
        """Return the entries of one speaker, the oldest first."""
        return [entry for entry in self.entries.values() if entry.speaker == speaker]

    def speakers(self) -> list[str]:
        """Return the speakers that have entries."""
        return list(dict.fromkeys(entry.speaker for entry in self.entries.values()))


def _added(fact: Fact, text: str, number: int) -> MemoryEntry:
    return MemoryEntry(
        id=f"{fact.number}.{number}" if number else str(fact.number),
        text=text,
        speaker=fact.speaker,
        time=fact.time,
        sources=(fact.number,),
    )


def _updated(entry: MemoryEntry, fact: Fact, text: str) -> MemoryEntry:
    # A text by the manager may contain the old content; the text of the fact does not.
    kept = entry.sources if text else ()
    return replace(
        entry,
        text=text or fact.text,
        time=fact.time or entry.time,
        old=(*entry.old, entry.text),
        sources=(*kept, fact.number),
    )


def entry_fields(entry: MemoryEntry) -> Mapping[str, str]:
    """Return the fields of an entry for observations."""
    return {"id": entry.id, "text": entry.text, "time": entry.time, "rendered": entry.rendered()}
