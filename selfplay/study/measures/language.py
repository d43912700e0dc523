"""Language of a run: what each speaker says by what it sees, over the recorded steps.

**Definition.** The probability of each message, given the view of its speaker; the entropy of the
messages; and the mutual information of message and view, in nats. If no turn on record is a message
to other agents, the texts of all turns without listed legal moves count instead. If texts have
several words, the probability of each word in a text is given too. A message counts with its words
also if the arena called it illegal; only a turn that did not parse is *no valid action*. *New*
words were first used after the first recorded step; *dying* words have lost three quarters of their
largest fraction.

**Source.** Positive signalling: Lowe et al. 2019, 1903.05168. Adjustment for chance: Vinh, Epps and
Bailey 2010 (JMLR 11).

**Estimator.** The records alone: nothing is played, and no model is loaded. At every step the
information, which is the smaller of two corrections of the plug-in estimate, the adjustment for
chance and the jackknife; and the mean plug-in estimate of random pairings. At the chosen steps also
an interval from both corrections and the jackknife's standard error, and a permutation test. The
information is about 0 in the mean if messages do not depend on the views, and is that of the
plug-in for a code without errors; for noisy codes with many rare messages it is too high or too
low. Probabilities have the interval of Clopper and Pearson at the effective number of uses, over
episodes.

**Limits.** A word that depends on the view need not be understood: measure `influence` and
`ablate`. The information and its interval are about the views of the step: the episodes of a group
share their deal, so a step of few groups shows few views, and the information of such a step is at
most the logarithm of their number. A view that was seen fewer than `--least` times in a step has no
row in the tables and is not drawn; a note counts these views. Messages of one episode depend on
each other, so the interval is too narrow where a speaker speaks several times. Texts that are all
different carry no measurable information.
"""

import argparse
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from selfplay.errors import ConfigError
from selfplay.study.measure import Measure, Option
from selfplay.study.plots import CurvePlot, Drawing, MatrixPlot
from selfplay.study.recorded_usage import (
    WORD_COLUMNS,
    AgentUsage,
    curves_of,
    pictures_of,
    recorded_usage,
    shortened,
    to_json,
    undrawn_views,
    word_rows,
)
from selfplay.study.result import Result, Table
from selfplay.study.stats.bootstrap import Estimate
from selfplay.study.stats.mutual_information import mutual_information
from selfplay.study.stats.usage import SPEECH, WHOLE, UsageTable, Word, dying, newest
from selfplay.study.usage_chances import INVALID, ViewChances
from selfplay.study.usage_tables import (
    FEWEST_USES,
    LEAST,
    check_least,
    left_out,
    shown_views,
    tables_of,
)

DRAWN = 12
"""Largest number of views and of words in a picture."""


def study(
    run: Path,
    *,
    step: int | None = None,
    agent: str | None = None,
    least: int = FEWEST_USES,
) -> Result:
    """Count the words of a run's records.

    Args:
        run: Run folder.
        step: Step whose tables are shown; None: the first, middle and last recorded step.
        agent: The only speaker; None: all.
        least: Smallest number of uses of a view with a row.
    Raises:
        ConfigError: If the records have no messages and no texts, or if `least` is below 1.
    """
    check_least(least)
    found = recorded_usage(run, (*SPEECH, "move"), step=step, agent=agent)
    spoken = any(each.kind == "message" for each in found)
    kept = [each for each in found if each.kind.startswith("message" if spoken else "text")]
    if not kept:
        raise ConfigError(
            f"language: the records of {run} have no messages and no texts, only moves; measure "
            "selfplay study behaviour"
        )
    whole = {each.agent: each for each in kept if each.kind not in WHOLE}
    kept = [each for each in kept if each.kind not in WHOLE or _has_words(each, whole)]
    measured = [each for each in kept if each.kind not in WHOLE]
    notes = [] if spoken else ["no turn on record is a message: the texts of other turns count"]
    notes += _silent(found, {each.agent for each in kept}, spoken=spoken)
    counts, rare = left_out(measured, least=least)
    drawings, undrawn = _drawings(measured, least)
    return Result(
        measure="language",
        title=f"Language of {run.resolve().name}",
        definition="What each speaker says, by what it sees: the probability of each message, and "
        "the mutual information of message and view in nats.",
        estimates=[
            _information(each, at, table) for each in measured for at, table in each.chosen.items()
        ],
        tables=[*(table for each in kept for table in _tables(each, whole, least)), *counts],
        drawings=drawings,
        params={
            "run": str(run),
            "step": "first, middle, last" if step is None else step,
            "least": least,
        },
        notes=[*notes, *rare, *undrawn],
        more={
            "speakers": [
                {
                    **to_json(each, whole),
                    "newest": [vars(word) for word in _newest(each)],
                    "dying": [vars(word) for word in dying(each.vocabulary, each.now)],
                }
                for each in kept
            ]
        },
    )


def _information(usage: AgentUsage, step: int, table: UsageTable) -> Estimate:
    """Return the mutual information of text and view at one step, with its interval."""
    pairs = [cell for cell, lines in table.lines.items() for _ in lines]
    views, texts = zip(*pairs, strict=True)
    found = mutual_information(f"information, {usage.agent}, step {step}", views, texts)
    flat = math.isfinite(found.low) and found.low == found.high
    more = "; no use differed, so the interval has no width" if flat else ""
    return replace(found, unit=usage.kind, notes=f"{found.notes}{more}")


def _has_words(usage: AgentUsage, whole: Mapping[str, AgentUsage]) -> bool:
    """Return True if there are at least half as many uses of words in this table as texts."""
    texts = sum(each.uses for each in whole[usage.agent].summaries.values())
    return sum(each.uses for each in usage.summaries.values()) >= texts / 2


def _silent(found: Sequence[AgentUsage], shown: Collection[str], *, spoken: bool) -> list[str]:
    """Return notes on the agents that are left out: those with moves, and those with texts.

    Args:
        found: Usage of all kinds.
        shown: Agents that the study shows.
        spoken: True if the study shows messages.
    """
    out = {each.agent: None for each in found if each.agent not in shown}
    moving = [agent for agent in out if any((e.agent, e.kind) == (agent, "move") for e in found)]
    notes = []
    if moving:
        notes.append(
            f"left out: {', '.join(moving)}; turns whose view lists legal moves are measured by "
            "selfplay study behaviour"
        )
    if writing := [agent for agent in out if spoken and agent not in moving]:
        notes.append(f"left out: {', '.join(writing)}; no turn of theirs is a message")
    return notes


def _newest(usage: AgentUsage) -> list[Word]:
    return newest(usage.vocabulary, min(usage.summaries))


def _drawings(measured: Sequence[AgentUsage], least: int) -> tuple[list[Drawing], list[str]]:
    """Return the pictures, and notes about what is not drawn; those of all speakers come first."""
    curves = [curves_of(usage, least=least) for usage in measured]
    ranked: list[tuple[int, Drawing]] = [(0, each) for each in _curves(measured)]
    ranked += [row for drawn in curves for row in enumerate(drawn, start=1)]
    ranked += [(0, each) for usage in measured for each in _matrix(usage, least)]
    kept, notes = pictures_of(ranked)
    return kept, [*undrawn_views(measured, curves, least=least), *notes]


def _tables(usage: AgentUsage, whole: Mapping[str, AgentUsage], least: int) -> list[Table]:
    what = "words" if usage.kind in WHOLE else f"{usage.kind}s"
    texts = whole[usage.agent].chosen if usage.kind in WHOLE else {}
    tables = [
        table
        for at in usage.chosen
        for table in tables_of(
            usage,
            at,
            texts.get(at),
            f"{usage.agent}, step {at}: probability of {what} by view, with 95 % intervals",
            least=least,
        )
    ]
    for title, listed in (
        (f"{usage.agent}: newest {what}", newest(usage.vocabulary, min(usage.summaries))),
        (f"{usage.agent}: dying {what}", dying(usage.vocabulary, usage.now)),
    ):
        if listed:
            rows = word_rows(listed, usage.now)
            tables.append(Table(title=title, columns=WORD_COLUMNS, rows=rows))
    return tables


def _curves(measured: Sequence[AgentUsage]) -> list[CurvePlot]:
    """Return the pictures of entropy and information of all speakers over the steps."""
    steps = sorted({step for each in measured for step in each.summaries})

    def series(name: str) -> dict[str, list[float]]:
        return {
            each.agent: [
                float(getattr(each.summaries[step], name)) if step in each.summaries else math.nan
                for step in steps
            ]
            for each in measured
        }

    information = {f"{agent}, corrected": row for agent, row in series("information").items()}
    chance_ = {f"{agent}, by chance": row for agent, row in series("chance").items()}
    return [
        CurvePlot(
            title="Entropy of messages, nats",
            x=steps,
            series=series("entropy"),
            bands={},
            label="entropy, nats",
        ),
        CurvePlot(
            title="Information of message and view, nats",
            x=steps,
            series={**information, **chance_},
            bands={},
            label="mutual information, nats",
        ),
    ]


def _matrix(usage: AgentUsage, least: int) -> list[MatrixPlot]:
    """Return the picture of the latest chosen step; none if no view was seen often enough."""
    table = usage.chosen[usage.last]
    chances = ViewChances(table)
    common = shown_views(table, least).views
    if not common:
        return []
    views = sorted(sorted(common, key=lambda view: -chances.uses(view))[:DRAWN])
    by_action = Counter[str | None]()
    for (view, action), lines in table.lines.items():
        if view in views:
            by_action[action] += len(lines)
    actions = [action for action, _ in by_action.most_common(DRAWN)]
    return [
        MatrixPlot(
            title=f"{usage.agent}, step {usage.last}: probability by view",
            rows=[shortened(view) for view in views],
            columns=[INVALID if each is None else shortened(each) for each in actions],
            values=[[chances.of(view, action).value for action in actions] for view in views],
        )
    ]


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    return study(options.run, step=options.step, agent=options.agent, least=options.least)


STEP = Option(
    name="step", type=int, metavar="N", help="recorded step (default: first, middle and last)"
)
AGENT = Option(name="agent", metavar="NAME", help="agent to measure (default: all)")

MEASURE = Measure(
    name="language",
    help="records of a run: words of each speaker by what it sees, over the steps",
    target="run",
    run=from_options,
    options=(STEP, AGENT, LEAST),
    comparable=False,
)
"""The measure `language` of the command line."""
