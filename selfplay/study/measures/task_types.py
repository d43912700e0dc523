"""Task types: the score of each type of task before and after training, and the gain of each run.

**Definition.** For each type of task of an evaluation, such as each generator of questions: the
mean of the main metric before training and at a checkpoint, and the difference. A negative gain is
forgetting; a gain in a type that a run did not train on is transfer. Several runs give a matrix.

**Source.** The usual table of a mixture of tasks; the matrix is that of `transfer`, by type of task
instead of by game.

**Estimator.** Both policies play the same tasks with the same seeds. A score of 0 or 1 has the
interval of a proportion; a gain is a bootstrap of paired differences over tasks. Unbiased for these
checkpoints.

**Limits.** The intervals are about new tasks, not about new runs. With many types, some intervals
exclude zero by chance: one in twenty, if nothing changed. All runs must have the same game, and the
tasks are those of the first run.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfplay.study.matches import StudyMatches
from selfplay.study.measure import PLAYING, Measure, open_games, references_of
from selfplay.study.players import Reference, StudyPlayer
from selfplay.study.plots import Drawing, IntervalPlot, MatrixPlot
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Draws, Estimate
from selfplay.types import Episode

ALL = "all"
"""Name of the row over all types."""


@dataclass(frozen=True, kw_only=True)
class TypeScore:
    """Scores of one type of task. `scores_by_type` makes them."""

    tasks: int
    """Number of different tasks."""
    before: Estimate
    """Mean metric before training."""
    after: Estimate | None = None
    """Mean metric at the checkpoint; None if only the start was measured."""
    gain: Estimate | None = None
    """Paired difference."""


def scores_by_type(
    games: StudyMatches, before: Sequence[Episode], after: Sequence[Episode] | None, *, who: str
) -> dict[str, TypeScore]:
    """Return the scores of all types of tasks, those of all tasks first.

    `before` and `after` are episodes of the same tasks in the same order; `after` is None if only
    the policies before training are measured. `who` names the player in the estimates.
    """
    kinds = [episode.task.type for episode in before]
    first = games.scores(before)
    last = games.scores(after) if after is not None else None
    found = {}
    for kind in (ALL, *sorted(set(kinds))):
        places = [place for place, each in enumerate(kinds) if kind in (ALL, each)]
        draws = Draws(tasks=[before[place].task.id for place in places], seed=games.seed)
        label = f"{kind}, {who}"
        count = len(set(draws.tasks))
        score = TypeScore(tasks=count, before=draws.mean(f"before: {label}", first[places]))
        if last is not None:
            score = replace(
                score,
                after=draws.mean(f"after: {label}", last[places]),
                gain=draws.mean(f"gain: {label}", (last - first)[places], null=0.0),
            )
        found[kind] = score
    return found


def study(games: StudyMatches, references: Sequence[Reference]) -> Result:
    """Play the games with every player and, for each, with its policies before training."""
    players = games.admit(references, any_role=True)
    scores: dict[str, Mapping[str, TypeScore]] = {}
    for reference, player in zip(references, players, strict=True):
        start = player
        if not reference.start:
            (start,) = games.admit([Reference(run=reference.run, start=True)], any_role=True)
        before = _played(games, start)
        after = None if reference.start else _played(games, player)
        scores[player.label] = scores_by_type(games, before, after, who=player.label)
    return result(scores, metric=games.metrics[0], params=games.record(), notes=games.notes)


def _played(games: StudyMatches, player: StudyPlayer) -> list[Episode]:
    return games.run(player.seats(games.agents))


def result(
    scores: Mapping[str, Mapping[str, TypeScore]],
    *,
    metric: str,
    params: Mapping[str, object],
    notes: Sequence[str] = (),
) -> Result:
    """Return the tables and pictures of the scores, by player and type of task."""
    gains = {
        who: {kind: each.gain for kind, each in found.items() if each.gain is not None}
        for who, found in scores.items()
    }
    gains = {who: found for who, found in gains.items() if found}
    kinds = list(next(iter(scores.values())))
    matrix = [
        [gains[who][kind].value if kind in gains[who] else float("nan") for kind in kinds]
        for who in gains
    ]
    tables = [_table(who, found, metric) for who, found in scores.items()]
    drawings: list[Drawing] = [
        IntervalPlot(
            title=f"Gain, {who}",
            estimates=list(found.values()),
            label=f"gain in {metric}",
            null=0.0,
        )
        for who, found in gains.items()
    ]
    if len(gains) > 1:
        rows: list[list[Cell]] = [[who, *row] for who, row in zip(gains, matrix, strict=True)]
        tables.append(Table(title="Gain by run and type", columns=["", *kinds], rows=rows))
        drawings.append(
            MatrixPlot(
                title="Gain: rows are the runs, columns the types of task",
                rows=list(gains),
                columns=kinds,
                values=matrix,
            )
        )
    estimates = [found[ALL].gain or found[ALL].before for found in scores.values()]
    return Result(
        measure="tasktypes",
        title=f"Scores by type of task: {', '.join(scores)}",
        definition=f"The mean {metric} of each type of task before and after training, and the "
        "gain. A negative gain is forgetting.",
        estimates=estimates,
        tables=tables,
        drawings=drawings,
        params=dict(params),
        notes=list(notes),
    )


def _table(who: str, found: Mapping[str, TypeScore], metric: str) -> Table:
    whole = any(each.gain is not None for each in found.values())
    columns = ["type of task", "tasks", "before", "low", "high"]
    if whole:
        columns += ["after", "low ", "high ", "gain", "low  ", "high  "]
    rows: list[list[Cell]] = []
    for kind, each in found.items():
        row: list[Cell] = [kind, each.tasks, *_three(each.before)]
        if whole:
            row += [*_three(each.after), *_three(each.gain)]
        rows.append(row)
    return Table(title=f"{metric} of {who}", columns=columns, rows=rows)


def _three(estimate: Estimate | None) -> list[float | None]:
    if estimate is None:
        return [None, None, None]
    return [
        value if np.isfinite(value) else None
        for value in (estimate.value, estimate.low, estimate.high)
    ]


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    references = references_of(options)
    with open_games(options, references[0].run) as games:
        return study(games, references)


MEASURE = Measure(
    name="tasktypes",
    help="score of each type of task before and after training, and the gain of each run",
    target="players",
    run=from_options,
    options=PLAYING,
    comparable=False,
)
"""The measure `tasktypes` of the command line."""
