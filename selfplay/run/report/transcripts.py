"""Transcripts: selection of the recorded episodes of a report, and preparation of their turns."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from selfplay.run.declarations import RunMetrics
from selfplay.run.formatting import number
from selfplay.run.record_reader import (
    Advantage,
    DamagedLines,
    Recorded,
    episodes_of,
    file_of,
    recorded_steps,
)
from selfplay.types import Episode, Message, Status, StopReason, ToolCall, Turn

LONGEST_TEXT = 8_000
"""Largest number of characters shown of one text; the run folder has the whole text."""
MOST_TURNS = 24
"""Number of first turns of an episode to show, apart from the turns that it was chosen for."""

_OUTCOMES = {
    "proposer": ("a rewarded proposal", "a proposal that failed"),
    "solver": ("a solved attempt", "an unsolved attempt"),
}
_TAGS = re.compile(
    r"<(?P<tag>think|answer)>(?P<inside>.*?)(?P<end></(?P=tag)>|\Z)"
    r"|<action_start>(?P<action>.*?)(?P<close><action_end>|\Z)",
    re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a completion."""

    kind: str
    """Kind of the part: "thinking", "answer" or "words" (text outside the two)."""
    text: str
    """Text of the part, without its tags."""
    closed: bool = True
    """True if the completion has the closing tag of the part."""


@dataclass(frozen=True, kw_only=True)
class TurnTranscript:
    """A turn prepared for display. `show` makes it; the templates read it."""

    turn: Turn
    """The recorded turn."""
    prompt: tuple[tuple[str, str], ...]
    """(speaker, text) of the messages that are new to the agent at this turn."""
    parts: tuple[Part, ...]
    """Parts of the completion, in order."""
    action: str
    """The action if its text differs from the answer's; empty otherwise."""
    invalid: str
    """Reason for the missing or refused action; empty if the action is valid."""
    verdict: str
    """The arena's verdict on the action; empty if it gave none."""
    judged: str
    """"good" or "bad" for a verdict whose direction is declared; empty otherwise."""
    facts: tuple[tuple[str, str], ...]
    """(name, value) of all other notes on the turn."""
    reward: str
    """The turn's reward."""
    advantage: str
    """The turn's advantage, or its mean and range over tokens."""
    marked: bool
    """True if the episode was chosen because of this turn."""
    cut: bool
    """True if the token limit ended the completion."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls of the completion, with shortened arguments and results."""


@dataclass(kw_only=True)
class ChosenEpisode(Recorded):
    """An episode chosen for the report."""

    file: str
    """File of the episode, relative to the run folder."""
    reasons: list[str] = field(default_factory=list)
    """Reasons for the choice."""
    marked: set[int] = field(default_factory=set)
    """Indices of the turns that the episode was chosen for."""

    declared: RunMetrics = field(default_factory=RunMetrics)
    """Declarations of the run, which say which verdicts are good and which are bad."""

    def turns(self) -> list[TurnTranscript]:
        """Return the turns to show, in time order."""
        advantages = advantages_of(self)
        return [
            show(turn, advantages[index], index in self.marked, self.declared)
            for index, turn in enumerate(self.episode.turns)
            if index < MOST_TURNS or index in self.marked
        ]


def advantages_of(record: Recorded) -> list[Advantage]:
    """Return [turns] advantages of an episode, None for turns without one.

    If some are missing, some roles do not learn, and the record does not say which turn an
    advantage belongs to; then all are None.
    """
    turns = len(record.episode.turns)
    return list(record.advantages) if len(record.advantages) == turns else [None] * turns


def choose(
    run: Path, declared: RunMetrics | None = None, *, damaged: DamagedLines | None = None
) -> list[ChosenEpisode]:
    """Choose episodes of the first, middle and last recorded step; empty if none was recorded.

    Chosen at each step: for every role the first move with an action and a positive reward, and the
    first other move; and the first failed episode. Damaged lines are added to `damaged` and left
    out. Raises RunError if a file cannot be read, and without `damaged` for a damaged line.
    """
    steps = recorded_steps(run)
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []
    known = declared or RunMetrics()
    return [choice for step in chosen for choice in _of_step(run, step, known, damaged)]


def _of_step(
    run: Path, step: int, declared: RunMetrics, damaged: DamagedLines | None
) -> list[ChosenEpisode]:
    choices: dict[int, ChosenEpisode] = {}
    seen: set[tuple[str, bool]] = set()
    for record in episodes_of(run, step, damaged=damaged):
        file = file_of(run, step).relative_to(run).as_posix()
        choice = ChosenEpisode(**vars(record), file=file, declared=declared)
        for kind, index, reason in _kinds(record.episode):
            if kind not in seen:
                seen.add(kind)
                choice.reasons.append(reason)
                choice.marked.update(() if index is None else (index,))
                choices[record.line] = choice
    return list(choices.values())


def _kinds(episode: Episode) -> Iterator[tuple[tuple[str, bool], int | None, str]]:
    """Yield (kind, index of the turn, reason); a report shows the first one of each kind."""
    if episode.status is Status.FAILED:
        yield ("", False), None, "the first failed episode"
        return
    for index, turn in enumerate(episode.turns):
        if not turn.final:
            continue
        paid = turn.action is not None and turn.reward > 0
        outcomes = _OUTCOMES.get(
            turn.role,
            (f"a rewarded {turn.role} turn", f"an unrewarded {turn.role} turn"),
        )
        what = outcomes[0 if paid else 1].partition(" ")[2]
        yield (turn.role, paid), index, f"the first {what} ({turn.agent})"


def show(
    turn: Turn, advantage: Advantage, marked: bool, declared: RunMetrics | None = None
) -> TurnTranscript:
    """Prepare a turn for display.

    Args:
        turn: The recorded turn.
        advantage: Its advantage, or None.
        marked: True if the episode was chosen because of this turn.
        declared: Declarations of the run, which say which verdicts are good and which are bad.
    """
    verdict = str(turn.info.get("verdict", ""))
    parts = split(turn.text)
    action = turn.action or ""
    if any(part.kind == "answer" and part.text.strip() == action.strip() for part in parts):
        action = ""
    reason = turn.info.get("invalid")
    return TurnTranscript(
        turn=turn,
        prompt=tuple((str(m.get("role", "?")), shorten(content(m))) for m in turn.messages),
        parts=tuple(
            Part(kind=part.kind, text=shorten(part.text), closed=part.closed) for part in parts
        ),
        action="" if action.strip() == turn.text.strip() else shorten(action),
        invalid=str(reason or "no reason noted") if turn.invalid or reason else "",
        verdict=verdict,
        judged=(declared or RunMetrics()).verdict(turn.role, verdict) if verdict else "",
        facts=tuple(
            (name, fact(value))
            for name, value in turn.info.items()
            if name not in ("invalid", "verdict")
        ),
        reward=number(turn.reward),
        advantage=_advantage(advantage),
        marked=marked,
        cut=turn.stop_reason is StopReason.LENGTH,
        calls=tuple(
            replace(call, arguments=shorten(call.arguments), result=shorten(call.result))
            for call in turn.tool_calls
        ),
    )


def split(text: str) -> list[Part]:
    """Split a completion into thinking, answer, and words outside the two."""
    parts, position = [], 0
    # A prompt may end with the opening tag, so that the completion starts inside the thought.
    head, end, _ = text.partition("</think>")
    if end and "<think>" not in head:
        parts, position = [Part(kind="thinking", text=head.strip("\n"))], len(head) + len(end)
    for found in _TAGS.finditer(text, position):
        parts.append(Part(kind="words", text=text[position : found.start()]))
        inside = found["inside"] if found["tag"] else found["action"]
        kind = "thinking" if found["tag"] == "think" else "answer"
        parts.append(
            Part(kind=kind, text=inside.strip("\n"), closed=bool(found["end"] or found["close"]))
        )
        position = found.end()
    parts.append(Part(kind="words", text=text[position:]))
    kept = [part for part in parts if part.kind != "words" or part.text.strip()]
    return kept or [Part(kind="words", text="")]


def content(message: Message) -> str:
    """Return a message's text; a part without text appears as its kind in brackets."""
    parts = message.get("content", "")
    if isinstance(parts, str):
        return parts
    return "\n".join(
        str(part["text"]) if "text" in part else f"[{part.get('type', 'part')}]" for part in parts
    )


def shorten(text: str, longest: int = LONGEST_TEXT) -> str:
    """Cut a text after `longest` characters and append the number of omitted characters."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n[... {len(text) - longest:,} more characters]"


def fact(value: Any) -> str:
    """Return a recorded value as a text that is not too long."""
    if isinstance(value, float):
        return number(value)
    try:
        return shorten(value if isinstance(value, str) else json.dumps(value, sort_keys=True))
    except RecursionError:
        return "nested too deeply"


def _advantage(value: Advantage) -> str:
    if isinstance(value, list):
        if not value:
            return "-"
        mean = sum(value) / len(value)
        return f"{number(mean)} (per token, {number(min(value))} to {number(max(value))})"
    return number(value)
