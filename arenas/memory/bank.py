"""The memory bank of Memory-R1: entries, the operations on them, and a journal of these.

The journal is the whole state, as plain data: a bank is copied, cut back or rebuilt from it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from selfplay.types import well_formed

EVENTS = ("ADD", "UPDATE", "DELETE", "NOOP")
SYNONYMS = {"NONE": "NOOP"}
"""What the paper's prompt says for what its text calls NOOP."""
KEYS = frozenset({"event", "id", "text", "old_memory"})


class OperationError(ValueError):
    """No operation on the bank; the argument is the named reason."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """What the dialogue said, at some time, by or about a speaker."""

    number: int
    """Its place in the dialogue, from 0."""
    text: str
    """In words."""
    speaker: str = ""
    """Whose memories it belongs to."""
    time: str = ""
    """When it was said, as the dialogue writes it."""


@dataclass(frozen=True, kw_only=True)
class MemoryEntry:
    """One memory."""

    id: str
    """Made from the number of the fact that added it, so that an operation left out leaves the
    other ids as they are."""
    text: str
    """What is remembered."""
    speaker: str = ""
    """Whose memory it is."""
    time: str = ""
    """When it was last written."""
    old: tuple[str, ...] = ()
    """Earlier texts, the first one first."""
    sources: tuple[int, ...] = ()
    """Numbers of the facts that its text may rest on."""

    def rendered(self) -> str:
        """As the paper renders it: the time, a colon, the text."""
        return f"{self.time}: {self.text}" if self.time else self.text


@dataclass(frozen=True, kw_only=True)
class MemoryOperation:
    """What a manager does to the bank."""

    event: str
    """One of `EVENTS`."""
    id: str = ""
    """The entry that UPDATE and DELETE are about."""
    text: str = ""
    """What ADD and UPDATE write; the fact as it was said where empty."""


def read_operations(text: str) -> list[MemoryOperation]:
    """The operations in a manager's JSON, those that do nothing left out.

    {"memory": [{"id": "3", "text": "...", "event": "UPDATE", "old_memory": "..."}, ...]} is the
    paper's form; one such object by itself is one operation. Raises OperationError: not_json,
    bad_form (anything but these keys, of text), unknown_event, no_id.
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
        raise ValueError("a key stands twice")
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
    # JSON escapes can smuggle in what is no text.
    text = well_formed(data.get("text", "")).strip()
    return MemoryOperation(event=event, id=data.get("id", ""), text=text)


def read_answer(action: str | None) -> tuple[str | None, list[str]]:
    """The answer and the ids of the memories it names; (None, []) of what is no answer.

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
    """Most entries; 0 is no limit."""
    longest: int = 1000
    """Characters of an entry's text, which bound later prompts."""
    journal: list[dict[str, Any]] = field(default_factory=list)
    """Every operation that was applied, with the fact that it was applied for."""
    entries: dict[str, MemoryEntry] = field(default_factory=dict)
    """What the journal comes to."""

    def apply(
        self,
        operations: Sequence[MemoryOperation],
        fact: Fact,
        *,
        known: Iterable[str] | None = None,
    ) -> None:
        """Do all the operations that a fact led to, or none of them.

        `known` are the ids that may be named; all that there are where None. Raises
        OperationError: unknown_id, id_taken (an ADD that names an entry), too_long, full.
        """
        named = set(self.entries if known is None else known)
        entries = dict(self.entries)
        for number, operation in enumerate(operations):
            text = operation.text or fact.text
            if len(text) > self.longest:
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
        for operation in operations:
            self.journal.append({"operation": vars(operation).copy(), "fact": vars(fact).copy()})

    def fork(self, length: int | None = None) -> "MemoryBank":
        """The bank as the first `length` operations of its journal left it; a copy where None."""
        twin = MemoryBank(capacity=self.capacity, longest=self.longest)
        number, last = 0, -1
        for record in self.journal[:length]:
            fact = Fact(**record["fact"])
            number = number + 1 if fact.number == last else 0
            last = fact.number
            twin._again(MemoryOperation(**record["operation"]), fact, number)
            twin.journal.append(record)
        return twin

    def _again(self, operation: MemoryOperation, fact: Fact, number: int) -> None:
        """An operation of the journal, which was sound when it was made."""
        text = operation.text or fact.text
        if operation.event == "ADD":
            entry = _added(fact, text, number)
            self.entries[entry.id] = entry
        elif operation.event == "DELETE":
            del self.entries[operation.id]
        else:
            self.entries[operation.id] = _updated(self.entries[operation.id], fact, operation.text)

    def of(self, speaker: str) -> list[MemoryEntry]:
        """The entries of one speaker, the oldest first."""
        return [entry for entry in self.entries.values() if entry.speaker == speaker]

    def speakers(self) -> list[str]:
        """Whose entries there are."""
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
    # A text of the manager's own may keep what the entry said; the bare fact keeps nothing of it.
    kept = entry.sources if text else ()
    return replace(
        entry,
        text=text or fact.text,
        time=fact.time or entry.time,
        old=(*entry.old, entry.text),
        sources=(*kept, fact.number),
    )


def entry_fields(entry: MemoryEntry) -> Mapping[str, str]:
    """An entry as prompts see it."""
    return {"id": entry.id, "text": entry.text, "time": entry.time, "rendered": entry.rendered()}
