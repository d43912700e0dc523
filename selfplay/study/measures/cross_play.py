"""Cross-play: performance of independently trained policies with each other.

**Definition.** There are N players from N independent training runs of one algorithm. J[i, j] is
the metric when player i plays the first side and player j the second. Self-play SP is the mean of
the diagonal, cross-play XP the mean of the other cells, and the gap is SP - XP. The gap is 0 if
the runs find the same or compatible ways to play, and large if each run has its own conventions.
A role that the same opponent (a script, a saved model, a frozen model) plays for all players is no
side: in J[i, j] it is played as in the run of player i. With more than two sides, J[i, j] puts j
into one side and i into all others, averaged over the sides that take part in the task
(`Arena.agents_of`). A task with fewer than two sides is left out.

**Source.** Hu et al. 2020, Other-Play, 2003.02979.

**Estimator.** All ordered pairs play the same tasks with the same seeds. Cells share players, so
the interval over runs is that of a U-statistic with both parts of its variance (see `pairs`). A
bootstrap over cells would be far too narrow, and a jackknife alone has no spread if the runs learn
one of two codes. The interval is cut at the range of the metric in these games. The study also
gives the interval for these policies in new episodes, and the gap of every pair. Unbiased.

**Limits.** Checkpoints of one run are not independent runs. Policies from the same base model
inherit conventions, which makes the gap small; a reward that many ways of playing reach does too.
Cross-play between different algorithms is another quantity.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import compress

import numpy as np

from selfplay.errors import ConfigError
from selfplay.study.matches import StudyMatches
from selfplay.study.measure import PLAYING, Measure, open_games, references_of
from selfplay.study.players import StudyPlayer, except_fixed_roles, roles_played_alike
from selfplay.study.plots import IntervalPlot, MatrixPlot
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Draws, Estimate, divide, mean, weighted
from selfplay.study.stats.pairs import differences, over_pairs, rounded, span_of

IDLE = (
    "never moves in these games, so its player has no effect; name games in which it moves with "
    "--evaluation"
)

Cells = Mapping[tuple[int, int], np.ndarray]
"""(player, partner) to [N] scores of their episodes."""


def study(
    games: StudyMatches, players: Sequence[StudyPlayer], *, independent: bool = True
) -> Result:
    """Play all ordered pairs of players, and return the gap of self-play to cross-play.

    `independent` is True if the players are from different runs. Raises ConfigError for one player,
    and for games of one side.
    """
    if len(players) < 2:
        raise ConfigError(
            "crossplay: a single player has no partner; name runs of several seeds, such as "
            "selfplay train -m ... seed=0,1,2 makes, or checkpoints as RUN@STEP"
        )
    sides = list(games.sides(players))
    if len(sides) < 2:
        raise ConfigError(
            f"crossplay: {games.arena().name} has fewer than two sides"
            f"{except_fixed_roles(players)}; name runs of a game of two or more"
        )
    cells, draws = run_pairs(games, players)
    labels = [player.label for player in players]
    means = matrix(cells, len(players))
    estimates = estimate(cells, means, draws, independent=independent)
    notes = [*games.notes]
    if not independent:
        notes.append(
            "players of one run are not independent: the intervals over runs are left out, and a "
            "small gap between them says nothing about other seeds"
        )
    playing = f"rows play {sides[0]}, columns {sides[1]}"
    if len(sides) > 2:
        playing = "rows play with the partners in the columns"
        notes.append("with more than two sides, the partner takes each of them in turn")
    other = "another training run" if independent else "another player"
    gap = f"The gap is self-play minus cross-play, the loss with a partner from {other}."
    if games.less_is_better:
        gap = (
            "The gap is self-play minus cross-play. Less of this metric is better, so a negative "
            f"gap is a loss with a partner from {other}."
        )
    return Result(
        measure="crossplay",
        title=f"Cross-play of {len(players)} players in {games.arena().name}",
        definition=f"{games.metrics[0]} of every player with every partner. Self-play is the mean "
        f"of the diagonal, cross-play the mean of the other cells. {gap}",
        estimates=estimates,
        tables=[
            Table(
                title=f"{games.metrics[0]}: {playing}",
                columns=["", *labels],
                rows=[[label, *map(float, row)] for label, row in zip(labels, means, strict=True)],
            ),
            by_pair(cells, draws, labels, title="Gap of each pair of players, for these policies"),
        ],
        drawings=[
            MatrixPlot(
                title=f"{games.metrics[0]}: {playing}",
                rows=labels,
                columns=labels,
                values=means.tolist(),
            ),
            IntervalPlot(
                title="With 95 % intervals",
                estimates=estimates,
                label=games.metrics[0],
            ),
        ],
        params=games.record(),
        notes=notes,
    )


def run_pairs(games: StudyMatches, players: Sequence[StudyPlayer]) -> tuple[Cells, Draws]:
    """Return the scores of all ordered pairs, and the resampling for their intervals.

    Only episodes in which two sides take part have a score. A note names the roles that are no side
    because the same opponent plays them for all players. Raises ConfigError if there are no such
    episodes, and if a side never moves, because its player has no effect.
    """
    sides = list(games.sides(players).values())
    shared = sides_that_meet(games, players)
    if not shared.any():
        raise ConfigError(
            f"no task of these games in {games.arena().name} has two sides, so no policy has a "
            "partner; name games of two sides with --evaluation"
        )
    played: np.ndarray = np.any(shared, axis=0)
    if not played.all():
        games.notes.append(
            f"{int((~played).sum())} of {len(played)} episodes have tasks with a single side, so "
            "the comparison of partners leaves them out"
        )
    if same := roles_played_alike(players):
        games.notes.append(
            f"the same opponent plays {', '.join(same)} for all players, so "
            f"{'it is no side' if len(same) == 1 else 'they are no sides'}"
        )
    cells: dict[tuple[int, int], np.ndarray] = {}
    draws = None
    for i, player in enumerate(players):
        for j, partner in enumerate(players):
            # With two sides the partner takes the second one; cell (j, i) has it in the first.
            turns = range(len(sides))[-1:] if i == j or len(sides) == 2 else range(len(sides))
            counted = played[None] if i == j else shared[list(turns)]
            found = []
            for turn in turns:
                seating = {**player.seats(games.agents), **partner.seats(sides[turn])}
                episodes = games.run(seating)
                draws = draws or games.draws(list(compress(episodes, played)))
                found.append(games.scores(episodes))
            total = np.sum(found, axis=0, where=counted)[played]
            cells[i, j] = divide(total, counted.sum(axis=0)[played])
    assert draws is not None
    for side in games.idle(players):
        raise ConfigError(f"{side} {IDLE}")
    return cells, draws


def sides_that_meet(games: StudyMatches, players: Sequence[StudyPlayer]) -> np.ndarray:
    """Return [sides, N]: True if the side takes part in the episode, and another side too.

    A role that the same opponent plays for all players is no side.
    """
    arena, sides = games.arena(), games.sides(players).values()
    there = [set(arena.agents_of(spec.task)) for spec in games.episode_specs({})]
    found = np.array([[not agents.isdisjoint(side) for agents in there] for side in sides])
    return found & (found.sum(axis=0) > 1)


def matrix(cells: Cells, count: int) -> np.ndarray:
    """Return [N, N] means of the cells."""
    return np.array([[mean(cells[i, j]) for j in range(count)] for i in range(count)])


def estimate(
    cells: Cells, means: np.ndarray, draws: Draws, *, independent: bool = True
) -> list[Estimate]:
    """Return self-play, cross-play and gap, for these policies and over runs.

    Each is a mean over cells of the mean over the episodes with the metric; NaN if a cell has no
    such episode.

    Args:
        cells: See `Cells`.
        means: [players, players] means of the cells.
        draws: Resampling of the episodes.
        independent: False leaves out the estimates over runs.
    """
    count, span = len(means), span_of(cells.values())

    def within(weights: np.ndarray) -> np.ndarray:
        each = [weighted(weights, cells[i, i]) for i in range(count)]
        return np.asarray(np.mean(each, axis=0))

    def across(weights: np.ndarray) -> np.ndarray:
        each = [weighted(weights, values) for (i, j), values in cells.items() if i != j]
        return np.asarray(np.mean(each, axis=0))

    def apart(weights: np.ndarray) -> np.ndarray:
        return rounded(within(weights) - across(weights))

    without = int(np.isnan(means).sum())
    notes = f"in {without} of {means.size} cells no episode has the metric" if without else ""
    found = [
        draws.of("self-play", within, bounds=span, notes=notes),
        draws.of("cross-play", across, bounds=span, notes=notes),
        draws.of("gap", apart, bounds=differences(span), null=0.0, notes=notes),
    ]
    if independent and count > 2:
        found += over_pairs(means, span)
    return found


def by_pair(cells: Cells, draws: Draws, labels: Sequence[str], *, title: str) -> Table:
    """Return the gap of each pair of players, with its interval for these policies.

    The gap is half of the sum of both losses by playing with each other instead of with themselves.
    """
    bounds = differences(span_of(cells.values()))
    rows: list[list[Cell]] = []
    for i, one in enumerate(labels):
        for j, other in enumerate(labels[:i]):
            four = [cells[pair] for pair in ((i, i), (j, j), (i, j), (j, i))]

            def apart(weights: np.ndarray, four: Sequence[np.ndarray] = four) -> np.ndarray:
                own, mine, first, second = (weighted(weights, each) for each in four)
                return rounded(np.asarray((own + mine - first - second) / 2))

            gap = draws.of("", apart, bounds=bounds)
            rows.append([f"{other} and {one}", gap.value, gap.low, gap.high])
    return Table(title=title, columns=["", "gap", "low", "high"], rows=rows)


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    references = references_of(options)
    runs = {reference.run.resolve() for reference in references}
    with open_games(options, references[0].run) as games:
        players = games.admit(references)
        return study(games, players, independent=len(runs) == len(references))


MEASURE = Measure(
    name="crossplay",
    help="every player with every other: the gap between self-play and cross-play",
    target="players",
    run=from_options,
    options=PLAYING,
    comparable=False,
)
"""The measure `crossplay` of the command line."""
