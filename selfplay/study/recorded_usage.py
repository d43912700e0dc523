"""Usage of words and moves over the recorded steps of a run, for studies.

The counts are those of `selfplay.study.stats.usage`. A step is read, counted and left, so that the
memory does not grow with the number of episodes.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selfplay.errors import ConfigError, RunError, nearest
from selfplay.run.directory import Run
from selfplay.run.record_reader import episodes_of, recorded_steps
from selfplay.run.report.charts import MOST_SERIES
from selfplay.study.plots import CurvePlot
from selfplay.study.result import Cell, Table
from selfplay.study.stats.bootstrap import Estimate
from selfplay.study.stats.proportions import clopper_pearson, effective_trials
from selfplay.study.stats.text import shared_words
from selfplay.study.stats.usage import (
    SPEECH,
    WHOLE,
    Kind,
    UsageSummary,
    UsageTable,
    Word,
    frames,
    shares_of,
    summary_of,
    usage_of,
)

INVALID = "no valid action"
"""Name of actions that did not parse, and of illegal moves."""
MOST_VIEWS = 40
"""Largest number of views in a table of the result."""
LONGEST = 120
"""Largest number of characters of a view in a table; the JSON has the whole text."""


@dataclass(kw_only=True)
class AgentUsage:
    """One agent's words or moves of one kind over the steps. `recorded_usage` makes it."""

    agent: str
    kind: Kind
    summaries: dict[int, UsageSummary]
    """Step to the numbers of its table."""
    chosen: dict[int, UsageTable]
    """Chosen step to its whole table."""
    frames: dict[int, dict[tuple[str, str | None], int]]
    """Step to the uses of each (view, action), for at most 60 evenly spaced steps."""
    words: dict[str, Word]
    """Action to its history."""
    now: dict[str, float]
    """Action to its fraction of the uses of the last step."""

    @property
    def vocabulary(self) -> list[Word]:
        """Histories of all actions."""
        return list(self.words.values())

    @property
    def last(self) -> int:
        """Latest chosen step with a table."""
        return max(self.chosen)


def recorded_usage(
    run: Path, kinds: Sequence[Kind], *, step: int | None = None, agent: str | None = None
) -> list[AgentUsage]:
    """Count the words or moves of a run, by agent and kind.

    Args:
        run: Run folder; it is read as data.
        kinds: Kinds that count.
        step: Step whose tables are kept. None: those of the first, middle and last recorded step.
        agent: The only agent that counts; None: all.
    Raises:
        RunError: If the run recorded no episodes.
        ConfigError: If the step is not on record or there is no such agent.
    """
    Run.open(run)
    steps = recorded_steps(run)
    if not steps:
        raise RunError(
            f"run {run} recorded no episodes; train one with run.episodes_every=1 (or more)"
        )
    if step is not None and step not in steps:
        near = min(steps, key=lambda each: abs(each - step))
        raise ConfigError(f"--step {step}: not on record; the nearest recorded step is {near}")
    shown = set(frames(steps))
    chosen = {steps[0], steps[len(steps) // 2], steps[-1]} if step is None else {step}
    found: dict[tuple[str, Kind], AgentUsage] = {}
    agents: set[str] = set()
    for at in steps:
        tables = usage_of((each.line, each.episode) for each in episodes_of(run, at))
        agents |= {name for name, _ in tables}
        for (name, kind), table in tables.items():
            if kind in kinds and agent in (None, name):
                each = found.setdefault((name, kind), _empty(name, kind))
                _add(each, at, table)
                if at in shown:
                    each.frames[at] = table.counts()
                if at in chosen:
                    each.chosen[at] = table
    if agent is not None and agent not in agents:
        raise ConfigError(f"--agent {agent}: {nearest(agent, agents)}")
    kept = [each for each in found.values() if each.chosen]
    return sorted(kept, key=lambda each: (kinds.index(each.kind), each.agent))


def _empty(agent: str, kind: Kind) -> AgentUsage:
    return AgentUsage(agent=agent, kind=kind, summaries={}, chosen={}, frames={}, words={}, now={})


def _add(each: AgentUsage, step: int, table: UsageTable) -> None:
    """Count the table of one more step; the steps come in order."""
    each.summaries[step] = summary_of(table, each.kind)
    shares = shares_of(table)
    each.now = {action: share for action, (_, share) in shares.items()}
    for action, (times, share) in shares.items():
        word = each.words.get(action)
        if word is None:
            each.words[action] = Word(
                text=action, first=step, last=step, times=times, peak=share, peak_step=step
            )
        else:
            word.add(step, times, share)


def chance(
    table: UsageTable, view: str, action: str | None, whole: UsageTable | None = None
) -> Estimate:
    """Return the probability of an action at a view, with its interval over episodes.

    Uses in the same episode depend on each other, so the interval is that of Clopper and Pearson at
    the effective number of uses. `whole` is the table of the texts if the action is one of their
    words.
    """
    hits, trials = Counter(table.lines.get((view, action), ())), Counter[int]()
    for (other, _), lines in (whole or table).lines.items():
        if other == view:
            trials.update(lines)
    over = np.array([hits[line] for line in trials], dtype=float)
    under = np.array(list(trials.values()), dtype=float)
    count, single = float(under.sum()), bool((under <= 1).all())
    value = float(over.sum()) / count if count else float("nan")
    size = count if single else effective_trials(over, under)
    low, high = clopper_pearson(value * size, size) if count else (float("nan"),) * 2
    return Estimate(
        name=f"{INVALID if action is None else action} | {view}",
        value=value,
        low=low,
        high=high,
        method="Clopper-Pearson" + ("" if single else " at the effective number of uses"),
        unit="episode",
        count=len(trials),
    )


ON_TERMINAL = 7
"""Largest number of columns of a table of one step on a terminal: view, uses and five actions."""


def table_of(usage: AgentUsage, step: int, whole: UsageTable | None, title: str) -> Table:
    """Return the table of one step: a row per view, the probability of each action in per cent.

    `whole` is the table of the texts if `usage` is about their words, see `chance`.
    """
    table = usage.chosen[step]
    views, actions = _common(whole or table, part=0)[:MOST_VIEWS], _columns(table, usage.kind)
    rows: list[list[Cell]] = []
    for view in sorted(views):
        cells: list[Cell] = []
        for action in actions:
            found = chance(table, view, action, whole)
            cells.append(
                f"{100 * found.value:.0f}% ({100 * found.low:.0f} to {100 * found.high:.0f})"
            )
        uses = sum(len(lines) for cell, lines in (whole or table).lines.items() if cell[0] == view)
        rows.append([label(usage.kind, view), uses, *cells])
    names = [INVALID if action is None else shortened(action) for action in actions]
    return Table(title=title, columns=["view", "uses", *names], rows=rows, terminal=ON_TERMINAL)


def label(kind: Kind, view: str) -> str:
    """Return a view in one short line."""
    return "first round" if kind == "answer" and not view else shortened(view)


def labels(kind: Kind, views: Sequence[str]) -> dict[str, str]:
    """Return a label for each view, all different.

    If several views would have equal labels, the words that all of them end with are left out.
    Labels that are equal even then are numbered.
    """
    found = {view: label(kind, view) for view in views}
    by_label: dict[str, list[str]] = {}
    for view, text in found.items():
        by_label.setdefault(text, []).append(view)
    for alike in by_label.values():
        if len(alike) > 1:
            split = {view: view.split() for view in alike}
            same = shared_words(words[::-1] for words in split.values())
            left = {view: words for view, words in split.items() if len(words) > same}
            for view, words in left.items():
                found[view] = f"{shortened(' '.join(words[: len(words) - same]))} ..."
    return dict(zip(found, _numbered(found.values()), strict=True))


def _numbered(texts: Iterable[str]) -> list[str]:
    """Return the texts, with a number after each text that occurred before."""
    seen: Counter[str] = Counter()
    found = []
    for text in texts:
        seen[text] += 1
        found.append(f"{text} ({seen[text]})" if seen[text] > 1 else text)
    return found


def shortened(text: str) -> str:
    """Return a text in one line of at most `LONGEST` characters; a long text keeps its end."""
    line = " ".join(text.split())
    if len(line) > LONGEST:
        return f"... {line[4 - LONGEST :]}"
    return line or "(empty)"


def _common(table: UsageTable, *, part: int) -> list[Any]:
    found: Counter[Any] = Counter()
    for cell, lines in table.lines.items():
        found[cell[part]] += len(lines)
    return [each for each, _ in found.most_common()]


MOST_ACTIONS = 12
"""Largest number of actions in a table of the result."""


def _columns(table: UsageTable, kind: Kind) -> list[str | None]:
    """Return the actions of a table: legal moves in their order first, invalid actions last.

    Messages and texts are in the order of their frequency, and those without a use are left out.
    """
    common = _common(table, part=1)
    rows = [] if kind in SPEECH else table.legal.values()
    legal = list(dict.fromkeys(move for row in rows for move in row))
    listed = [*legal, *(action for action in common if action not in legal and action is not None)]
    kept: list[str | None] = [action for action in listed if action in common or action in legal]
    return [*kept[:MOST_ACTIONS], *([None] if None in common else [])]


def to_json(usage: AgentUsage, whole: Mapping[str, AgentUsage]) -> dict[str, Any]:
    """Return plain data of one agent: numbers by step, counts of the frames, chosen tables.

    `whole` maps agents to the usage of whole texts, for the probabilities of their words.
    """
    texts = whole.get(usage.agent) if usage.kind in WHOLE else None
    return {
        "agent": usage.agent,
        "kind": usage.kind,
        "steps": [
            {
                "step": step,
                **{k: None if v != v else v for k, v in vars(each).items()},
            }
            for step, each in usage.summaries.items()
        ],
        "frames": [
            {
                "step": step,
                "cells": [
                    {"view": view, "action": action, "times": times}
                    for (view, action), times in cells.items()
                ],
            }
            for step, cells in usage.frames.items()
        ],
        "tables": [
            {
                "step": step,
                "cells": [
                    {
                        "view": view,
                        "action": action,
                        "times": len(lines),
                        **{
                            key: value
                            for key, value in found.to_json().items()
                            if key in ("value", "ci_low", "ci_high")
                        },
                    }
                    for (view, action), lines in table.lines.items()
                    for found in [
                        chance(table, view, action, texts.chosen[step] if texts else None)
                    ]
                ],
            }
            for step, table in usage.chosen.items()
        ],
    }


def word_rows(words: Sequence[Word], now: Mapping[str, float]) -> list[list[Cell]]:
    """Return the rows of a table of words, with the columns `WORD_COLUMNS`.

    `now` maps each word to its fraction of the uses of the last step.
    """
    return [
        [
            shortened(word.text),
            word.first,
            word.last,
            word.times,
            f"{100 * word.peak:.0f}% at step {word.peak_step}",
            f"{100 * now.get(word.text, 0.0):.0f}%",
        ]
        for word in words
    ]


MOST_CURVES = 4
"""Largest number of actions with a picture of their own."""


def curves_of(usage: AgentUsage) -> list[CurvePlot]:
    """Return pictures of the probability of each frequent action over the steps, by view."""
    by_view: Counter[str] = Counter()
    by_action: Counter[str] = Counter()
    for cells in usage.frames.values():
        for (view, action), times in cells.items():
            by_view[view] += times
            by_action.update({} if action is None else {action: times})
    totals = {step: Counter[str]() for step in usage.frames}
    for step, cells in usage.frames.items():
        for (view, _), times in cells.items():
            totals[step][view] += times
    views = sorted(view for view, _ in by_view.most_common(MOST_SERIES))
    shown = labels(usage.kind, views)
    actions = [action for action, _ in by_action.most_common(MOST_CURVES)]
    return [
        CurvePlot(
            title=f"{usage.agent}: probability of {shortened(action)} by view",
            x=list(usage.frames),
            series={
                shown[view]: [
                    cells.get((view, action), 0) / totals[step][view]
                    if totals[step][view]
                    else math.nan
                    for step, cells in usage.frames.items()
                ]
                for view in views
            },
            bands={},
            label="probability",
        )
        for action in (actions[:1] if len(by_action) == 2 else actions)
    ]


WORD_COLUMNS = ["", "first step", "last step", "uses", "peak", "at the last step"]
"""Columns of `word_rows`."""
