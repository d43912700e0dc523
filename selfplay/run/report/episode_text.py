"""Recorded episodes as text, for a terminal."""

from collections.abc import Iterator, Sequence
from textwrap import indent

from selfplay.credit.base import pay_by_agent
from selfplay.errors import printable
from selfplay.run.declarations import RunMetrics
from selfplay.run.formatting import number
from selfplay.run.record_reader import Recorded
from selfplay.run.report.html import visible
from selfplay.run.report.transcripts import TurnTranscript, advantages_of, fact, shorten, show
from selfplay.types import Episode

MARGIN = "    "
"""Space before the lines of a text that a model or an arena wrote."""
LONGEST_TASK = 500
"""Largest number of characters shown of a task."""


def text_of(record: Recorded, declared: RunMetrics) -> str:
    """Return an episode as text: its task, its turns, the arena's metrics and each agent's pay.

    Texts of models and arenas are indented, so that no line of them looks like a heading, and
    characters that a terminal would obey are made visible.
    """
    episode = record.episode
    ended = f"{episode.status.value}: {episode.error}" if episode.error else episode.status.value
    head = f"Episode {record.line} of step {record.step} (group {record.group}, {ended})"
    lines = [printable(head), printable(f"task {episode.task.id}: {_task(episode)}")]
    for turn, advantage in zip(episode.turns, advantages_of(record), strict=True):
        lines += ["", *_turn(show(turn, advantage, False, declared))]
    measured = ", ".join(f"{name} {number(value)}" for name, value in episode.metrics.items())
    if measured:
        lines += ["", printable(f"metrics: {measured}")]
    paid = (f"{agent} {number(pay)}" for agent, pay in pay_by_agent(episode).items())
    return "\n".join([*lines, "", printable(f"paid: {', '.join(paid) or 'no agent'}")])


def _task(episode: Episode) -> str:
    return shorten(fact(dict(episode.task.payload)), LONGEST_TASK)


def _turn(shown: TurnTranscript) -> Iterator[str]:
    turn = shown.turn
    who = turn.agent if turn.agent == turn.role else f"{turn.agent} ({turn.role})"
    stage = "" if turn.stage < 0 else f", stage {turn.stage}"
    yield printable(f"--- {who}, policy {turn.policy}{stage}")
    for speaker, text in shown.prompt:
        yield from _block(f"{speaker}:", text)
    yield from _block("completion:", shorten(turn.text))
    if shown.action:
        yield from _block("action:", shown.action)
    for call in shown.calls:
        yield from _block(f"call of {call.name or 'no tool'}:", call.arguments)
        yield from _block(call.error or "result:", call.result)
    yield printable("; ".join(_facts(shown)))


def _facts(shown: TurnTranscript) -> Iterator[str]:
    yield f"reward {shown.reward}, advantage {shown.advantage}"
    if shown.verdict:
        yield f"verdict {shown.verdict}"
    if shown.invalid:
        yield f"invalid: {shown.invalid}"
    if shown.cut:
        yield "cut off at the token limit"


def _block(title: str, text: str) -> Sequence[str]:
    return (printable(title), indent(str(visible(text)), MARGIN, lambda line: True))
