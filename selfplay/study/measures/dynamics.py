"""Dynamics of a run: cycles, drift of difficulty and language, diversity, length.

**Definition.** All metrics are by step, from the records of the run. *Solve rate*: a metric of
metrics.jsonl. It oscillates if its autocorrelation around a straight line has a peak after a trough
that AR(1) noise with the same persistence seldom has. *Trend*: the slope of a series per 100 steps.
*Diversity*: distinct-2 of a role's words, and the effective number (exp of the entropy) of its
different actions, both for the same amount of text at every step. If actions have several words,
also self-BLEU and the Vendi score, an effective number in which two similar actions count as less
than two. *Novelty* of proposals: 1 - the similarity to the most similar earlier proposal, with the
same number of earlier proposals at every step. *Drift*: the k3 estimate of the KL divergence from
the untrained policy in nats per token, and the surprisal of the words under that policy.
*Self-correction*: turns with a phrase such as "recheck". *Length*: tokens, and the fraction of
truncated turns. Turns of frozen opponents are left out where a policy that learns plays the same
agent in the same step.

**Source.** Phrases and their control: 2503.20783; distinct-n: 1510.03055; Vendi score: 2210.02410;
self-BLEU: 1802.01886; k1 and k3: Schulman 2020.

**Estimator.** AR(1) surrogates for slopes and cycles. If the autocorrelation of a series is long
for its length, the interval of its slope is too narrow, and its note says so. The similarity of
actions is the Jaccard similarity of their words and pairs of neighbouring words. Self-BLEU uses up
to four words and no smoothing. The interval is about this run: another seed is another series.

**Limits.** The solve rate of a proposer's tasks rises with the solver's skill and falls with the
difficulty of the tasks, so a flat rate may hide that both improve. Only `crossplay` of checkpoints
separates them. Base models correct themselves too: compare the phrases with the first step. Words
are not meaning: the words of an action's format make all actions similar, and a paraphrase counts
as different. Drift is measured on the sampled tokens at their sampling temperature.
"""

import argparse
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from selfplay.errors import ConfigError, nearest
from selfplay.run.declarations import read_declared
from selfplay.run.formatting import counted
from selfplay.study.measure import METRIC, SEED, Measure
from selfplay.study.players import untrained
from selfplay.study.plots import CurvePlot
from selfplay.study.recorded_episodes import PROPOSED, recorded_episodes
from selfplay.study.recorded_metrics import recorded_metrics
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.text import (
    ARCHIVE,
    corrections,
    distinct,
    drift,
    effective_number,
    likeness,
    misfits,
)
from selfplay.study.stats.time_series import LARGEST, measurable, oscillation, trend
from selfplay.study.stats.usage import learning_agents
from selfplay.types import Episode, Status, StopReason, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHIEF = ("arena/proposed_solve_rate", "arena/solve_rate", "arena/accuracy", "arena/team_return")
"""Default metrics to test for cycles: the first one that the run has; then the arena's chief."""
MOST_TURNS = 32
"""Largest number of turns per step and role for drift, Vendi score, self-BLEU and novelty."""
KINDS = {
    "distinct-2": "Diversity: different pairs of words",
    "kinds of action": "Diversity: effective number of different actions",
    "Vendi score": f"Diversity: Vendi score of actions, {MOST_TURNS} a step at the most",
    "self-BLEU": "Likeness: self-BLEU of the same actions",
    "novelty": "Novelty of proposals against those of earlier steps",
    "tokens": "Length, tokens",
    "cut off": "Turns that the limit cut off",
    "self-correction": "Turns with a phrase of self-correction",
    "drift k3": "Language drift: KL from the untrained policy, nats per token",
    "surprisal under base": "Surprisal under the untrained policy, nats per token",
}
"""Metrics of each role at each step, with the titles of their pictures."""

Steps = Sequence[tuple[int, Sequence[Episode]]]
"""(step, its episodes) in order."""
Rows = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Role to step to metric to value."""


def study(
    run: Path,
    episodes: Steps,
    base: "Mapping[str, PreTrainedModel]",
    *,
    metric: str | None = None,
    seed: int = 0,
) -> Result:
    """Analyse the records of a run.

    Args:
        run: Run folder.
        episodes: Recorded episodes by step.
        base: Name of a policy to its untrained model, for the drift.
        metric: Metric to test for cycles; None: see `chief`.
        seed: Seed of the surrogates and of the choice of turns.
    Raises:
        ConfigError: If the record has no such metric.
    """
    metrics = recorded_metrics(run)
    name = chief(metrics, metric, read_declared(run).arena.chief)
    on_record = [(step, metrics[step][name]) for step in metrics if name in metrics[step]]
    pairs = [(step, measurable(value)) for step, value in on_record if abs(step) <= LARGEST]
    steps, values = [step for step, _ in pairs], [value for _, value in pairs]
    lost = len(on_record) - sum(math.isfinite(value) for value in values)
    rows = by_role(episodes, base, seed=seed)
    unread = misfits((t for _, played in episodes for each in played for t in each.turns), base)
    trends = [
        trend(f"{role}: {kind}", list(found), [row[kind] for row in found.values()], seed=seed)
        for role, found in rows.items()
        for kind in KINDS
    ]
    return Result(
        measure="dynamics",
        title=f"Dynamics of {run.resolve().name}",
        definition="Metrics by step: cycles of the solve rate, and trends of diversity, length and "
        "distance to the untrained policy.",
        estimates=[
            oscillation(f"cycle of {name}", values, seed=seed),
            trend(f"trend of {name}", steps, values, seed=seed),
            *(each for each in trends if math.isfinite(each.value)),
        ],
        tables=[_ends(role, found) for role, found in rows.items()],
        drawings=[
            CurvePlot(title=name, x=steps, series={name: values}, bands={}, label=name),
            *_curves(rows),
        ],
        params={
            "run": str(run),
            "metric": name,
            "seed": seed,
            "turns_for_drift_and_likeness": MOST_TURNS,
            "most_earlier_proposals": ARCHIVE,
        },
        notes=[
            "intervals are about the steps of this run: other seeds are other series",
            "diversity uses the same number of words and of actions at every step",
            *_unmeasured(rows, proposers_of(episodes)),
            *(
                [f"{name}: {lost} of {len(on_record)} values are not finite or too large: left out"]
                if lost
                else []
            ),
            *(
                [
                    f"{counted(unread, 'turn')} without a prompt, with tokens that the untrained "
                    "policy lacks, or without a log-probability for each token: left out of drift "
                    "and surprisal"
                ]
                if unread
                else []
            ),
        ],
    )


def chief(
    metrics: Mapping[int, Mapping[str, float]], metric: str | None, own: Sequence[str] = ()
) -> str:
    """Return the name of the metric that is tested for cycles.

    Without `metric` it is the first metric on record of `CHIEF`, then of `own`: the metrics that
    the arena declares as its chief ones. Raises ConfigError if none is on record.
    """
    known = {key for row in metrics.values() for key in row}
    if metric is not None and metric not in known:
        raise ConfigError(f"--metric {metric}: {nearest(metric, known)}")
    mine = [f"arena/{name}" for name in own]
    found = metric or next((key for key in (*CHIEF, *mine) if key in known), None)
    if found is None:
        raise ConfigError(
            f"dynamics: metrics.jsonl has none of {', '.join(CHIEF)}; name a metric with --metric, "
            f"{nearest('role/reward', known)}"
        )
    return found


def by_role(
    steps: Steps,
    base: "Mapping[str, PreTrainedModel]",
    *,
    seed: int = 0,
) -> dict[str, dict[int, dict[str, float]]]:
    """Return the metrics of each role at each step; diversity uses equal sizes at all steps."""
    turns: dict[str, dict[int, list[Turn]]] = {}
    proposers = proposers_of(steps)
    for step, episodes in steps:
        kept = [episode for episode in episodes if episode.status is not Status.FAILED]
        learning = learning_agents(kept)
        for episode in kept:
            for turn in episode.turns[episode.shared_turns :]:
                if turn.final and (turn.trainable or turn.agent not in learning):
                    turns.setdefault(turn.role, {}).setdefault(step, []).append(turn)
    found: dict[str, dict[int, dict[str, float]]] = {}
    for role, at in turns.items():
        count = min(len(each) for each in at.values())
        # A random order, so that equal size does not select the first tasks of a step.
        drawn = {
            step: Random(f"{seed}-{step}").sample(each, len(each)) for step, each in at.items()
        }
        budget = min(sum(len(turn.text.split()) for turn in each) for each in at.values())
        found[role] = {
            step: metrics_of(at[step], drawn[step], base, count=count, words=budget) for step in at
        }
        actions = {step: [t.action or "" for t in each[:count]] for step, each in drawn.items()}
        alike = likeness(actions, most=MOST_TURNS, proposals=role in proposers, seed=seed)
        for step, row in alike.items():
            found[role][step] |= row
    return found


def proposers_of(steps: Steps) -> set[str]:
    """Return the roles that make proposals.

    A proposal is the first turn of an episode with the metric `PROPOSED`.
    """
    return {
        turn.role
        for _, episodes in steps
        for episode in episodes
        if episode.status is not Status.FAILED and PROPOSED in episode.metrics
        for turn in episode.turns[:1]
    }


def metrics_of(
    turns: Sequence[Turn],
    drawn: Sequence[Turn],
    base: "Mapping[str, PreTrainedModel]",
    *,
    count: int,
    words: int,
) -> dict[str, float]:
    """Return the metrics of one role at one step.

    Args:
        turns: Turns of the role.
        drawn: The same turns in random order.
        base: Policy to its untrained model.
        count: Number of actions for the diversity of actions.
        words: Number of words for the diversity of words.
    """
    spoken, left = [], words
    for turn in drawn:
        spoken.append(turn.text.split()[:left])
        left -= len(spoken[-1])
    _, k3, surprisal = drift(drawn[:MOST_TURNS], base)
    return {
        "distinct-2": distinct(spoken),
        "kinds of action": effective_number([turn.action or "" for turn in drawn[:count]]),
        "tokens": sum(len(turn.completion_ids) for turn in turns) / len(turns),
        "cut off": sum(turn.stop_reason is StopReason.LENGTH for turn in turns) / len(turns),
        "self-correction": corrections([turn.text for turn in turns])[0],
        "drift k3": k3,
        "surprisal under base": surprisal,
    }


def _unmeasured(rows: Rows, proposers: Collection[str]) -> list[str]:
    """Return notes that say why roles have no value of a metric of texts at any step."""

    def lacking(kind: str) -> list[str]:
        return [
            role
            for role, found in rows.items()
            if not any(math.isfinite(row[kind]) for row in found.values())
        ]

    old = lacking("novelty")
    reasons = [
        (
            "distinct-2",
            lacking("distinct-2"),
            "no turn has two words among those that count, which are equally many at every step",
        ),
        ("Vendi score and self-BLEU", lacking("Vendi score"), "no action has two words"),
        (
            "novelty",
            [role for role in old if role not in proposers],
            "no proposals on record; a proposal is the first turn of an episode with the metric "
            f"{PROPOSED}, which an arena measures where an agent proposes a task",
        ),
        (
            "novelty",
            [role for role in old if role in proposers],
            "too few earlier proposals, or no proposal has two words",
        ),
    ]
    return [f"no {kind} of {', '.join(roles)}: {why}" for kind, roles, why in reasons if roles]


def _ends(role: str, rows: Mapping[int, Mapping[str, float]]) -> Table:
    steps = sorted(rows)
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    cells: list[list[Cell]] = [[kind, *(rows[step][kind] for step in chosen)] for kind in KINDS]
    return Table(
        title=f"{role} at the first, middle and last step on record",
        columns=["", *(f"step {step}" for step in chosen)],
        rows=cells,
    )


def _curves(rows: Rows) -> list[CurvePlot]:
    steps = sorted({step for found in rows.values() for step in found})
    drawings = []
    for kind, title in KINDS.items():
        series = {
            role: [found[step][kind] if step in found else math.nan for step in steps]
            for role, found in rows.items()
            if any(math.isfinite(row[kind]) for row in found.values())
        }
        if series:
            drawings.append(CurvePlot(title=title, x=steps, series=series, bands={}, label=title))
    return drawings


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    episodes = recorded_episodes(options.run)  # raises before a model is loaded
    base = untrained(options.run)
    return study(options.run, episodes, base, metric=options.metric, seed=options.seed)


MEASURE = Measure(
    name="dynamics",
    help="records of a run by step: cycles, diversity, drift of language, length",
    target="run",
    run=from_options,
    options=(
        replace(METRIC, help="metric of metrics.jsonl, such as arena/NAME or role/ROLE/reward"),
        SEED,
    ),
)
"""The measure `dynamics` of the command line."""
