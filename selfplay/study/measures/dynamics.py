"""Dynamics of a run: cycles, drift of difficulty and language, diversity, length.

**Definition.** By step, from what the run recorded. *Solve rate*: a figure of metrics.jsonl; it
oscillates where its autocorrelation, a straight line taken out, has a peak behind a trough that
AR(1) noise of the same persistence seldom has. *Trend*: the slope of a series per 100 steps.
*Diversity*: distinct-2 of a role's words, and the effective number (exp of the entropy) of its
different actions, both of equally much text at every step; where actions have several words, also
the Vendi score (an effective number to which alike actions are less than two) and self-BLEU.
*Novelty*: of proposals, 1 - the similarity to the most similar of as many earlier ones at every
step. *Drift*: k1 and k3 estimates of the KL divergence from the untrained policy, in nats per
token, and the surprisal of the words under it. *Self-correction*: turns with a phrase such as
"recheck". *Length*: tokens, and the share cut off.

**Source.** Phrases and their control: 2503.20783; distinct-n: 1510.03055; Vendi score: 2210.02410;
self-BLEU: 1802.01886; k1 and k3: Schulman 2020.

**Estimator.** AR(1) surrogates for slopes and cycles; for a series that remembers for much of its
length the interval of a slope is too narrow, and its note says so. Similar are actions that share
words and pairs of neighbouring words (Jaccard); self-BLEU is of up to four words and unsmoothed.
The interval is about this run: another seed is another series.

**Limits.** The solve rate of a proposer's tasks rises with the solver and falls with the proposer;
a flat one may hide that both improve. Only a frozen panel separates them: `crossplay` of
checkpoints. Base models correct themselves too: read the phrases against the first step. Words say
little of meaning: those of an action's format make all actions similar, and the same said in other
words is different. Drift is of the sampled tokens at the temperature they were sampled with.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from transformers import PreTrainedModel

from selfplay.errors import ConfigError, RunError, nearest
from selfplay.run.directory import Run
from selfplay.run.records import episodes_of, read_metrics, recorded_steps
from selfplay.study.measures.reward_hacking import PROPOSED
from selfplay.study.plots import CurvePlot
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.text import (
    ARCHIVE,
    corrections,
    distinct,
    drift,
    effective_number,
    likeness,
)
from selfplay.study.stats.time_series import LARGEST, measurable, oscillation, trend
from selfplay.types import Episode, Status, StopReason, Turn

CHIEF = ("arena/proposed_solve_rate", "arena/solve_rate", "arena/accuracy", "arena/team_return")
"""What is looked at for cycles where nothing is named: the first that the run has."""
MOST_TURNS = 32
"""Turns of each step and role whose drift, Vendi score, self-BLEU and novelty are computed."""
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
"""What is measured of each role at each step, with the title of its picture."""

Steps = Sequence[tuple[int, Sequence[Episode]]]
"""(step, its episodes) in order."""
Rows = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Role to step to figure."""


def study(
    run: Path,
    episodes: Steps,
    base: Mapping[str, PreTrainedModel],
    *,
    metric: str | None = None,
    seed: int = 0,
) -> Result:
    """Look at what a run recorded. `base` has the untrained policies by name; drift needs them."""
    figures = read_metrics(run / "metrics.jsonl")
    name = chief(figures, metric)
    on_record = [(step, figures[step][name]) for step in figures if name in figures[step]]
    pairs = [(step, measurable(value)) for step, value in on_record if abs(step) <= LARGEST]
    steps, values = [step for step, _ in pairs], [value for _, value in pairs]
    lost = len(on_record) - sum(math.isfinite(value) for value in values)
    rows = by_role(episodes, base, seed=seed)
    trends = [
        trend(f"{role}: {kind}", list(found), [row[kind] for row in found.values()], seed=seed)
        for role, found in rows.items()
        for kind in KINDS
    ]
    return Result(
        measure="dynamics",
        title=f"Dynamics of {run.resolve().name}",
        definition="Figures by step: whether the solve rate goes in cycles, and how diversity, "
        "length and distance to the untrained policy develop.",
        estimates=[
            oscillation(f"cycle of {name}", values, seed=seed),
            trend(f"trend of {name}", steps, values, seed=seed),
            *(each for each in trends if math.isfinite(each.value)),
        ],
        tables=[_ends(role, found) for role, found in rows.items()],
        drawings=[
            CurvePlot(title=name, x=steps, series={name: values}, bands={}),
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
            "intervals are about this run's steps: other seeds are other series",
            "diversity is of equally many words, and equally many actions, at every step",
            *(
                [f"{name}: {lost} of {len(on_record)} values are no numbers or too large: left out"]
                if lost
                else []
            ),
        ],
    )


def recorded(
    run: Path, *, required: bool = True, until: int | None = None
) -> list[tuple[int, list[Episode]]]:
    """(step, its episodes) in order, up to step `until` where it is not None.

    Raises RunError where none was recorded but is required.
    """
    Run.open(run)
    steps = [step for step in recorded_steps(run) if until is None or step <= until]
    if not steps and required:
        raise RunError(
            f"run {run} recorded no episodes; train one with run.episodes_every=1 (or more)"
        )
    return [(step, [each.episode for each in episodes_of(run, step)]) for step in steps]


def chief(figures: Mapping[int, Mapping[str, float]], metric: str | None) -> str:
    """The name of the figure that is looked at for cycles."""
    known = {key for row in figures.values() for key in row}
    if metric is not None and metric not in known:
        raise ConfigError(f"--metric {metric}: {nearest(metric, known)}")
    found = metric or next((key for key in CHIEF if key in known), None)
    if found is None:
        raise ConfigError(
            f"dynamics: metrics.jsonl has none of {', '.join(CHIEF)}; name a figure with --metric, "
            f"{nearest('role/reward', known)}"
        )
    return found


def by_role(
    steps: Steps,
    base: Mapping[str, PreTrainedModel],
    *,
    seed: int = 0,
) -> dict[str, dict[int, dict[str, float]]]:
    """The figures of each role at each step, diversity of equally much at all of them."""
    turns: dict[str, dict[int, list[Turn]]] = {}
    proposers = set()
    for step, episodes in steps:
        for episode in episodes:
            if episode.status is not Status.FAILED:
                for turn in episode.turns[episode.shared_turns :]:
                    turns.setdefault(turn.role, {}).setdefault(step, []).append(turn)
                if PROPOSED in episode.metrics:
                    proposers |= {turn.role for turn in episode.turns[:1]}
    found: dict[str, dict[int, dict[str, float]]] = {}
    for role, at in turns.items():
        count = min(len(each) for each in at.values())
        # Drawn at random, so that equal size does not mean the first of the step's tasks.
        drawn = {
            step: Random(f"{seed}-{step}").sample(each, len(each)) for step, each in at.items()
        }
        budget = min(sum(len(turn.text.split()) for turn in each) for each in at.values())
        found[role] = {
            step: figures_of(at[step], drawn[step], base, count=count, words=budget) for step in at
        }
        actions = {step: [t.action or "" for t in each[:count]] for step, each in drawn.items()}
        alike = likeness(actions, most=MOST_TURNS, proposals=role in proposers, seed=seed)
        for step, row in alike.items():
            found[role][step] |= row
    return found


def figures_of(
    turns: Sequence[Turn],
    drawn: Sequence[Turn],
    base: Mapping[str, PreTrainedModel],
    *,
    count: int,
    words: int,
) -> dict[str, float]:
    """Of one role at one step; `drawn` are the same turns in random order."""
    spoken = [word for turn in drawn for word in turn.text.split()][:words]
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
            drawings.append(CurvePlot(title=title, x=steps, series=series, bands={}))
    return drawings
