"""Transfer: the gain of training in one game, measured in another game.

**Definition.** T[i, j] is the main metric of run j's evaluation when the policies of run i take all
seats, minus the same metric with run i's policies before training. The diagonal is the gain of each
run in its own game.

**Source.** Our own design: train-on-i, test-on-j matrices, relative to each row's own start.

**Estimator.** Both policies play the same tasks and seeds of a game. The estimate is a bootstrap of
paired differences over tasks, or over episodes if there is one task. Unbiased for these
checkpoints.

**Limits.** Metrics of different games have different units: compare only along columns. The prompts
are those of the other game. A run with a separate policy for each role transfers only to roles of
the same name, and its other cells are empty; a single shared policy takes every role.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfplay.errors import ConfigError
from selfplay.run.formatting import counted
from selfplay.study.matches import StudyMatches, games_of
from selfplay.study.measure import EPISODES, EVALUATION, SEED, Measure, references_of
from selfplay.study.players import Reference
from selfplay.study.plots import IntervalPlot, MatrixPlot
from selfplay.study.result import Result, Table
from selfplay.study.stats.bootstrap import Estimate


def study(
    references: Sequence[Reference],
    *,
    episodes: int | None = None,
    evaluation: str | None = None,
    seed: int = 0,
) -> Result:
    """Play each run's games with the policies of every run, trained and untrained.

    Args:
        references: The runs; ConfigError is raised for fewer than two.
        episodes: Number of episodes per cell; None: as many as the evaluation plays.
        evaluation: Name of the evaluation of each run; None: the first.
        seed: Seed of arenas and samples.
    """
    if len(references) < 2:
        raise ConfigError(
            "transfer: a single run has no other game; name runs of two games or more"
        )
    columns: list[_Column] = []
    for home in references:
        with games_of(home.run, evaluation=evaluation, episodes=episodes, seed=seed) as games:
            columns.append(_column(games, home, references))
    # If players of one game have the same name, their labels are longer there.
    rows = [max((column.labels.get(r, "") for column in columns), key=len) for r in references]
    names = [f"{row}: {column.metric}" for row, column in zip(rows, columns, strict=True)]
    estimates = [
        replace(gain, name=f"{column.labels[reference]} in {name}")
        for name, column in zip(names, columns, strict=True)
        for reference, gain in column.gains.items()
    ]
    values = [
        [column.gains[r].value if r in column.gains else math.nan for column in columns]
        for r in references
    ]
    notes = [note for column in columns for note in column.notes]
    notes += [
        f"{name}: {counted(count, 'truncated episode')} without the metric left out"
        for name, column in zip(names, columns, strict=True)
        for count in column.record.get("truncated_left_out", {}).values()
    ]
    return Result(
        measure="transfer",
        title=f"Transfer between {len(references)} games",
        definition="The gain by training of each run's policies (rows) in the games of each run "
        "(columns), in the main metric of that game.",
        estimates=estimates,
        tables=[
            Table(
                title="Gain over the untrained policies",
                columns=["", *names],
                rows=[[row, *gains] for row, gains in zip(rows, values, strict=True)],
            )
        ],
        drawings=[
            MatrixPlot(
                title="Gain: rows are the trained runs, columns the games",
                rows=rows,
                columns=names,
                values=values,
            ),
            IntervalPlot(
                title="With 95 % intervals",
                estimates=estimates,
                label="gain in the metric of each game",
                null=0.0,
            ),
        ],
        params={
            "runs": [str(each.run) for each in references],
            "seed": seed,
            "turns_without_action_in_the_last_game": columns[-1].record["turns_without_action"],
        },
        notes=list(dict.fromkeys(notes)),
    )


@dataclass(frozen=True, kw_only=True)
class _Column:
    """The results of all runs in the games of one run."""

    metric: str
    """The main metric of the games."""
    labels: Mapping[Reference, str]
    """Run to the label of its trained player."""
    gains: Mapping[Reference, Estimate]
    """Run to its gain by training; runs without a policy for some role are missing."""
    record: Mapping[str, Any]
    """Record of the games (`StudyMatches.record`)."""
    notes: Sequence[str]
    """Notes for the reader."""


def _column(games: StudyMatches, home: Reference, references: Sequence[Reference]) -> _Column:
    """Play the games of the run `home` with the policies of each run, trained and untrained."""
    roles = list(games.arena().roles)
    able = [each for each in references if not each.missing(roles)]
    trained = games.admit(able, any_role=True)
    starts = games.admit([Reference(run=r.run, start=True) for r in able], any_role=True)
    gains: dict[Reference, Estimate] = {}
    for reference, player, start in zip(able, trained, starts, strict=True):
        after = games.run(player.seats(games.agents))
        gain = games.scores(after) - games.scores(games.run(start.seats(games.agents)))
        gains[reference] = games.draws(after).mean(player.label, gain, null=0.0)
    missing = [
        f"{each.run.name} has no policy for {', '.join(each.missing(roles))}, so it does "
        f"not play the games of {home.run.name}"
        for each in references
        if each not in able
    ]
    return _Column(
        metric=games.metrics[0],
        labels={r: player.label for r, player in zip(able, trained, strict=True)},
        gains=gains,
        record=games.record(),
        notes=[*games.notes, *missing],
    )


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    return study(
        references_of(options),
        episodes=options.episodes,
        evaluation=options.evaluation,
        seed=options.seed,
    )


MEASURE = Measure(
    name="transfer",
    help="policies of each run in the games of every other run",
    target="players",
    run=from_options,
    options=(EVALUATION, EPISODES, SEED),
    comparable=False,
)
"""The measure `transfer` of the command line."""
