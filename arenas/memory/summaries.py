"""Summaries of sessions by the summarizer of the memory arena: RMM's prospective reflection
(2503.08026)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from arenas.memory.bank import Fact
from arenas.memory.extraction import ExtractionError
from arenas.memory.json_list import read_list
from arenas.quotes import in_one_line
from selfplay.types import Observation


@dataclass(frozen=True, kw_only=True)
class DialogueSession:
    """A session of a dialogue, from which the memories of one speaker are written."""

    speaker: str
    """Speaker whose memories are written."""
    turns: tuple[Fact, ...]
    """Turns of all speakers, which have the same time."""


@dataclass(frozen=True, kw_only=True)
class TopicSummary:
    """Summary of all that a session says about one topic."""

    text: str
    """Text of the summary, one line."""
    places: tuple[int, ...]
    """Places in the session, from 0, of the turns that the summary rests on."""


def sessions_of(turns: Sequence[Fact]) -> list[DialogueSession]:
    """Return the sessions of a dialogue, each once for every speaker who says something in it.

    A session is a sequence of turns with the same time; a dialogue without times is one session.
    """
    parts = [tuple(part) for _, part in groupby(turns, key=lambda turn: turn.time)]
    return [
        DialogueSession(speaker=speaker, turns=part)
        for part in parts
        for speaker in dict.fromkeys(turn.speaker for turn in part)
    ]


def read_summaries(
    action: str | None, *, turns: int, most: int, longest: int
) -> list[TopicSummary]:
    """Return the summaries in a summarizer's JSON, without repeated texts.

    The form is the paper's: {"extracted_memories": [{"summary": "...", "reference": [0, 2]}, ...]},
    where a reference is the place of a turn in the session of `turns` turns. White space of a text
    becomes one space, as in the facts of an extractor. Raises ExtractionError: malformed (no
    action), not_json, bad_form (other keys, an empty text, no reference, or one that is no
    integer), unknown_turn, several_summaries (more than `most`), too_long (more than `longest`
    characters).
    """
    listed = read_list(action, "extracted_memories", ExtractionError)
    by_text: dict[str, TopicSummary] = {}
    for each in map(_summary, listed):
        by_text.setdefault(each.text, each)
    found = list(by_text.values())
    if any(place not in range(turns) for each in found for place in each.places):
        raise ExtractionError("unknown_turn")
    if len(found) > most:
        raise ExtractionError("several_summaries")
    if any(len(each.text) > longest for each in found):
        raise ExtractionError("too_long")
    return found


def _summary(data: Any) -> TopicSummary:
    if not isinstance(data, dict) or set(data) != {"summary", "reference"}:
        raise ExtractionError("bad_form")
    text, places = data["summary"], data["reference"]
    if not isinstance(text, str) or not isinstance(places, list) or not places:
        raise ExtractionError("bad_form")
    if not all(type(place) is int for place in places):  # a bool is an int too
        raise ExtractionError("bad_form")
    # JSON escapes can contain invalid text, such as lone surrogates.
    line = in_one_line(text)
    if not line:
        raise ExtractionError("bad_form")
    return TopicSummary(text=line, places=tuple(dict.fromkeys(places)))


class SessionSummaries:
    """The sessions of a dialogue that a summarizer reads, and the origin of each summary."""

    def __init__(self, turns: Sequence[Fact], *, earlier: int, most: int, longest: int) -> None:
        """Args:
        turns: Turns of the dialogue.
        earlier: Number of facts before them, each of which is a turn of its own.
        most: Maximum number of summaries of a session and speaker.
        longest: Maximum characters of a summary.
        """
        self.unread = sessions_of(turns)
        self.turns_of: list[tuple[int, ...]] = [(number,) for number in range(earlier)]
        """Indices of the turns of each summary, by the number of the summary as a fact."""
        self.most, self.longest = most, longest
        self.sessions, self.earlier = len(self.unread), earlier
        self.malformed = 0

    def view(self) -> Observation:
        """Return the summarizer's view of the next session."""
        session = self.unread[0]
        said = [
            {"place": place, "speaker": turn.speaker, "text": turn.text}
            for place, turn in enumerate(session.turns)
        ]
        lines = [f"[{turn['place']}] {turn['speaker']}: {turn['text']}" for turn in said]
        return Observation(
            text="\n".join([*lines, session.speaker]),
            fields={
                "turns": said,
                "speaker": session.speaker,
                "time": session.turns[0].time,
                "most_summaries": self.most,
            },
        )

    def take(self, action: str | None) -> list[Fact]:
        """Return the summaries that an action makes of the next session, as facts of the speaker
        with the session's time. Raises ExtractionError for an invalid action; the session then has
        no summaries."""
        session = self.unread.pop(0)
        try:
            found = read_summaries(
                action, turns=len(session.turns), most=self.most, longest=self.longest
            )
        except ExtractionError:
            self.malformed += 1
            raise
        first = len(self.turns_of)
        self.turns_of += [
            tuple(session.turns[place].number for place in each.places) for each in found
        ]
        return [
            Fact(
                number=number,
                text=each.text,
                speaker=session.speaker,
                time=session.turns[0].time,
            )
            for number, each in enumerate(found, first)
        ]

    def metrics(self) -> dict[str, float]:
        """Return the mean number of summaries per session and speaker, the mean number of turns per
        summary, and the fraction of invalid actions."""
        made = self.turns_of[self.earlier :]
        return {
            "summaries_per_session": len(made) / self.sessions,
            "turns_per_summary": sum(map(len, made)) / max(len(made), 1),
            "malformed_extractions": self.malformed / self.sessions,
        }
