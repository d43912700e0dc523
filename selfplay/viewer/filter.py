"""What is asked of an index of episodes, and the rows that it answers with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which episodes are asked for; everything that is empty asks for all."""

    role: str = ""
    """Episodes in which this role took a turn; reward and validity are then the role's own."""
    status: str = ""
    """finished, truncated or failed."""
    outcome: str = ""
    """"paid" (more than 0 in all) or "unpaid"."""
    invalid: bool = False
    """Those with a turn that was no action."""
    text: str = ""
    """Words that stand in a prompt, a completion or a task."""
    step: int | None = None
    """Those of one step."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """An episode in a list."""

    step: int
    """The step that played it."""
    line: int
    """Its line in the step's file, from 1."""
    group: str
    """Its group."""
    member: int
    """Its place there."""
    arena: str
    """The arena's name."""
    type: str
    """The task's type."""
    task: str
    """The task's id."""
    status: str
    """How it ended."""
    invalid: int
    """Turns that were no action."""
    turns: int
    """Turns in all."""
    tokens: int
    """Completion tokens in all."""
    rewards: Mapping[str, float]
    """What each agent was paid."""


COLUMNS = "step, line, grouped, member, arena, type, task, status, invalid, turns, tokens, rewards"


def row_of(values: Sequence[Any]) -> Row:
    """The row of an episode from its `COLUMNS`."""
    *plain, rewards = values
    names = COLUMNS.replace("grouped", "group").split(", ")[:-1]
    return Row(**dict(zip(names, plain, strict=True)), rewards=json.loads(rewards))


def condition(asked: Filter) -> tuple[str, tuple[Any, ...]]:
    """The condition of a filter and its values."""
    conditions: list[str] = []
    values: list[Any] = []
    if asked.step is not None:
        conditions.append("e.step = ?")
        values.append(asked.step)
    if asked.status:
        conditions.append("e.status = ?")
        values.append(asked.status)
    own = []
    if asked.outcome:
        own.append("{}reward > 0" if asked.outcome == "paid" else "{}reward <= 0")
    if asked.invalid:
        own.append("{}invalid > 0")
    if asked.role:
        inner = " AND ".join(["r.role = ?", *(condition.format("r.") for condition in own)])
        conditions.append(f"e.id IN (SELECT r.episode FROM roles r WHERE {inner})")
        values.append(asked.role)
    else:
        conditions += [condition.format("e.") for condition in own]
    if asked.text.strip():
        conditions.append("e.id IN (SELECT rowid FROM words WHERE words MATCH ?)")
        # Each word in quotes: what is typed is text, and no query language.
        quoted = (word.replace('"', '""') for word in asked.text.replace("\0", " ").split())
        values.append(" ".join(f'"{word}"' for word in quoted))
    return (f"WHERE {' AND '.join(conditions)}" if conditions else ""), tuple(values)
