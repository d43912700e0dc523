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
from collections.abc import Sequence

from selfplay.errors import ConfigError
from selfplay.run.formatting import counted
from selfplay.study.matches import games_of
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
    estimates: list[Estimate] = []
    labels: dict[Reference, str] = {}
    names: list[str] = []
    values = [[float("nan")] * len(references) for _ in references]
    notes: list[str] = []
    for column, home in enumerate(references):
        with games_of(home.run, evaluation=evaluation, episodes=episodes, seed=seed) as games:
            roles = list(games.arena().roles)
            able = [each for each in references if not each.missing(roles)]
            players = games.admit(able, any_role=True)
            starts = [Reference(run=each.run, start=True) for each in able]
            before = games.admit(starts, any_role=True)
            for each, player in zip(able, players, strict=True):
                # If players of one game have the same name, `admit` gives them longer labels.
                labels[each] = max(labels.get(each, ""), player.label, key=len)
            names.append(f"{labels[home]}: {games.metrics[0]}")
            notes += [note for note in games.notes if note not in notes]
            notes += [
                f"{each.run.name} has no policy for {', '.join(each.missing(roles))}, so it does "
                f"not play the games of {home.run.name}"
                for each in references
                if each not in able
            ]
            for reference, player, start in zip(able, players, before, strict=True):
                after = games.run(player.seats(games.agents))
                gain = games.scores(after) - games.scores(games.run(start.seats(games.agents)))
                label = f"{player.label} in {names[-1]}"
                found = games.draws(after).mean(label, gain, null=0.0)
                estimates.append(found)
                values[references.index(reference)][column] = found.value
            record = games.record()
            notes += [
                f"{names[-1]}: {counted(count, 'truncated episode')} without the metric left out"
                for count in record.get("truncated_left_out", {}).values()
            ]
    rows = [labels[each] for each in references]
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
                rows=[[label, *row] for label, row in zip(rows, values, strict=True)],
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
            "turns_without_action_in_the_last_game": record["turns_without_action"],
        },
        notes=notes,
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
