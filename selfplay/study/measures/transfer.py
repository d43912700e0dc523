"""Transfer: is what was learned in one game worth anything in another?

**Definition.** T[i, j] is the chief metric of run j's evaluation when the policies of run i take
all seats of it, less the same with run i's policies as they were before training. The diagonal is
what each run learned of its own game.

**Source.** Our own design: train-on-i, test-on-j matrices, against each row's own start.

**Estimator.** Common tasks and seeds within a game; a bootstrap of paired differences, over tasks
or over episodes within tasks. Unbiased for these checkpoints.

**Limits.** Metrics of different games have different units: compare along columns. Prompts are the
other game's. A run with a policy of its own for each role transfers by roles of the same name
alone; one shared policy takes every role.
"""

from collections.abc import Sequence

from selfplay.errors import ConfigError
from selfplay.study.matches import games_of
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
    """Play each run's games with the policies of every run, trained and untrained."""
    if len(references) < 2:
        raise ConfigError(
            "transfer: one run has nowhere to transfer to; name runs of two games or more"
        )
    estimates: list[Estimate] = []
    labels: list[str] = []
    names: list[str] = []
    values = [[float("nan")] * len(references) for _ in references]
    notes: list[str] = []
    for column, home in enumerate(references):
        with games_of(home.run, evaluation=evaluation, episodes=episodes, seed=seed) as games:
            starts = [Reference(run=each.run, start=True) for each in references]
            players = games.admit(references, anyhow=True)
            before = games.admit(starts, anyhow=True)
            labels = [player.label for player in players]
            names.append(f"{labels[column]}: {games.metrics[0]}")
            notes += [note for note in games.notes if note not in notes]
            for row, (player, start) in enumerate(zip(players, before, strict=True)):
                after = games.run(player.seats(games.agents))
                gain = games.scores(after) - games.scores(games.run(start.seats(games.agents)))
                found = games.draws(after).mean(f"{labels[row]} in {names[-1]}", gain, null=0.0)
                estimates.append(found)
                values[row][column] = found.value
            record = games.record()
    return Result(
        measure="transfer",
        title=f"Transfer between {len(references)} games",
        definition="What each run's policies (rows) gained by their training in the games of each "
        "run (columns), in that game's chief metric.",
        estimates=estimates,
        tables=[
            Table(
                title="Gain over the untrained policies",
                columns=["", *names],
                rows=[[label, *row] for label, row in zip(labels, values, strict=True)],
            )
        ],
        drawings=[
            MatrixPlot(
                title="Gain: rows were trained, columns are played",
                rows=labels,
                columns=names,
                values=values,
            ),
            IntervalPlot(
                title="With 95 % intervals",
                estimates=estimates,
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
