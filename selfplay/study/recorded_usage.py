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

from selfplay.errors import ConfigError, RunError, nearest
from selfplay.run.directory import Run
from selfplay.run.record_reader import episodes_of, recorded_steps
from selfplay.run.report.charts import MOST_SERIES
from selfplay.study.plots import CurvePlot, Drawing
from selfplay.study.result import Cell
from selfplay.study.stats.text import shared_words
from selfplay.study.stats.usage import (
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
from selfplay.study.usage_chances import ViewChances

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
                    for found in [chances.of(view, action)]
                ],
            }
            for step, table in usage.chosen.items()
            for chances in [ViewChances(table, texts.chosen[step] if texts else None)]
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


MOST_PICTURES = 12
"""Largest number of pictures of a study of recorded usage."""


def pictures_of(ranked: Sequence[tuple[int, Drawing]]) -> tuple[list[Drawing], list[str]]:
    """Return at most `MOST_PICTURES` of the pictures in their order, and a note about the others.

    Each picture has a rank; the lowest ranks are kept, and of equal ranks the first ones.
    """
    order = sorted(range(len(ranked)), key=lambda place: ranked[place][0])
    kept = [ranked[place][1] for place in sorted(order[:MOST_PICTURES])]
    left = len(ranked) - len(kept)
    if not left:
        return kept, []
    return kept, [
        f"pictures left out: {left}, because a page has at most {MOST_PICTURES}; "
        "--agent NAME draws more pictures of one agent"
    ]


def undrawn_views(
    usages: Sequence[AgentUsage], curves: Sequence[Sequence[CurvePlot]], *, least: int
) -> list[str]:
    """Return a note with the number of situations without a curve; [] if all have one.

    `curves` are those that `curves_of` returned for each usage.
    """
    every = sum(len({view for cells in u.frames.values() for view, _ in cells}) for u in usages)
    drawn = sum(len({view for curve in each for view in curve.series}) for each in curves)
    if drawn == every:
        return []
    if not drawn:
        return [
            f"no situation has a curve: none was seen at least {least} times in a step and had a "
            "valid action"
        ]
    return [
        f"curves show {drawn:,} of {every:,} situations of all agents in the drawn steps: the "
        f"{MOST_SERIES} most frequent ones of an agent, in steps in which they were seen at least "
        f"{least} times"
    ]


MOST_CURVES = 4
"""Largest number of actions with a picture of their own."""


def curves_of(usage: AgentUsage, *, least: int) -> list[CurvePlot]:
    """Return pictures of the probability of each frequent action over the steps, by view.

    A point needs at least `least` uses of the view in its step. A view in which the action is not
    legal has no curve, nor one whose legal moves are not known and in which it was not chosen.
    Without any point there is no picture.
    """
    views = curve_views(usage, least=least)
    totals = {step: Counter[str]() for step in usage.frames}
    by_action: Counter[str | None] = Counter()
    legal = {view: set[str | None]() for view in views}
    for step, cells in usage.frames.items():
        for (view, action), times in cells.items():
            totals[step][view] += times
            if view in legal:
                by_action[action] += times
                legal[view].add(action)
    lists_moves = any(table.legal for table in usage.chosen.values())
    for view in views:
        listed = [table.legal[view] for table in usage.chosen.values() if view in table.legal]
        if listed:
            legal[view].update(*listed)
        elif not lists_moves:  # words
            legal[view].update(by_action)
    shown = labels(usage.kind, views)
    actions = [action for action, _ in by_action.most_common() if action is not None]
    # The picture of one of two actions shows the other one too, if every view has both.
    one = len(actions) == 2 and all(legal[view].issuperset(actions) for view in views)
    return [
        CurvePlot(
            title=f"{usage.agent}: probability of {shortened(action)} by view",
            x=list(usage.frames),
            series={
                shown[view]: [
                    cells.get((view, action), 0) / totals[step][view]
                    if totals[step][view] >= least
                    else math.nan
                    for step, cells in usage.frames.items()
                ]
                for view in views
                if action in legal[view]
            },
            bands={},
            label="probability",
        )
        for action in (actions[:1] if one else actions[:MOST_CURVES])
    ]


def curve_views(usage: AgentUsage, *, least: int) -> list[str]:
    """Return the most frequent views with a curve, at most `MOST_SERIES`, sorted by their text.

    Each of them was seen at least `least` times in one of the steps.
    """
    by_view: Counter[str] = Counter()
    frequent: set[str] = set()
    for cells in usage.frames.values():
        at: Counter[str] = Counter()
        for (view, _), times in cells.items():
            at[view] += times
        by_view.update(at)
        frequent.update(view for view, times in at.items() if times >= least)
    return sorted([view for view, _ in by_view.most_common() if view in frequent][:MOST_SERIES])


WORD_COLUMNS = ["", "first step", "last step", "uses", "peak", "at the last step"]
"""Columns of `word_rows`."""
