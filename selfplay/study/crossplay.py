"""Cross-play: how well independently trained policies do with each other.

**Definition.** N players from N independent training runs of one algorithm. J[i, j] is the metric
when the first side is played by i and the second by j. Self-play SP is the mean of the diagonal,
cross-play XP that of the rest, the gap SP - XP. It is 0 where runs find the same way to play, or
ways that go together, and large where each run has conventions of its own. With more than two sides
J[i, j] puts j into one seat and i into all others, averaged over the seats.

**Source.** Hu et al. 2020, Other-Play, 2003.02979.

**Estimator.** All ordered pairs play the same tasks with the same seeds. The interval over runs is
a jackknife over players with Student's t, because cells share players; a bootstrap over cells is
far too narrow. Beside it the interval for these very policies and new episodes. Unbiased.

**Limits.** Checkpoints of one run are no independent runs. Policies that began as the same base
model inherit conventions, which makes the gap look small; so does a reward that many ways of
playing reach. Cross-play between different algorithms is another number.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from selfplay.errors import ConfigError
from selfplay.study.games import Games
from selfplay.study.intervals import Draws, Estimate, jackknife, mean, weighted
from selfplay.study.players import Player
from selfplay.study.plots import Intervals, Matrix
from selfplay.study.result import Result, Table

IDLE = (
    "never moves in these games, so that who sits there changes nothing; name others, such as "
    "--evaluation proposals --metric proposed_solve_rate"
)

Cells = Mapping[tuple[int, int], np.ndarray]
"""(player, partner) to [N] scores of the episodes."""


def study(games: Games, players: Sequence[Player], *, independent: bool = True) -> Result:
    """Play all ordered pairs. `independent` says whether the players are of different runs."""
    if len(players) < 2:
        raise ConfigError(
            "crossplay: a single player has nobody to cross with; name runs of several seeds, such "
            "as selfplay train -m ... seed=0,1,2 makes, or checkpoints as RUN@STEP"
        )
    if len(games.sides()) < 2:
        raise ConfigError(
            f"crossplay: {games.arena().name} has one seat; name runs of a game of two or more"
        )
    cells, draws = play(games, players)
    labels = [player.label for player in players]
    means = matrix(cells, len(players))
    estimates = estimate(cells, means, draws, independent=independent)
    notes = [*games.notes]
    if not independent:
        notes.append(
            "players of one run are not independent: the intervals over runs are left out, and a "
            "small gap between them says nothing about other seeds"
        )
    if len(games.sides()) > 2:
        notes.append("with more than two seats, the partner takes one of them, in turn")
    return Result(
        measure="crossplay",
        title=f"Cross-play of {len(players)} players in {games.arena().name}",
        definition=f"{games.metrics[0]} of every player with every partner. Self-play is the mean "
        "of the diagonal, cross-play that of the rest; the gap between them is what a player "
        "loses with a partner that it was not trained with.",
        estimates=estimates,
        tables=[
            Table(
                title=f"{games.metrics[0]}: rows play with the partners in the columns",
                columns=["", *labels],
                rows=[[label, *map(float, row)] for label, row in zip(labels, means, strict=True)],
            )
        ],
        drawings=[
            Matrix(
                title=f"{games.metrics[0]} of rows with columns",
                rows=labels,
                columns=labels,
                values=means.tolist(),
            ),
            Intervals(
                title="With 95 % intervals",
                estimates=estimates,
            ),
        ],
        params=games.record(),
        notes=notes,
    )


def play(games: Games, players: Sequence[Player]) -> tuple[Cells, Draws]:
    """The scores of all ordered pairs, and how their intervals are made.

    Raises ConfigError where a side never moves, whose player changes nothing.
    """
    sides = list(games.sides().values())
    cells: dict[tuple[int, int], np.ndarray] = {}
    draws = None
    for i, player in enumerate(players):
        for j, partner in enumerate(players):
            # Of two sides, the partner always takes the second: the first is the partner's cell.
            seats = sides[-1:] if i == j or len(sides) == 2 else sides
            found = []
            for replaced in seats:
                seating = {
                    **player.seats([agent for agents in sides for agent in agents]),
                    **partner.seats(replaced),
                }
                episodes = games.play(seating)
                draws = draws or games.draws(episodes)
                found.append(games.scores(episodes))
            cells[i, j] = np.mean(found, axis=0)
    assert draws is not None
    for side in games.idle():
        raise ConfigError(f"{side} {IDLE}")
    return cells, draws


def matrix(cells: Cells, count: int) -> np.ndarray:
    """[N, N] means of the cells."""
    return np.array([[mean(cells[i, j]) for j in range(count)] for i in range(count)])


def estimate(
    cells: Cells, means: np.ndarray, draws: Draws, *, independent: bool = True
) -> list[Estimate]:
    """Self-play, cross-play and gap: for these policies, and over runs.

    Means over cells of the means of the episodes that have the metric; NaN where a cell has none.
    """
    count = len(means)

    def within(weights: np.ndarray) -> np.ndarray:
        each = [weighted(weights, cells[i, i]) for i in range(count)]
        return np.asarray(np.mean(each, axis=0))

    def across(weights: np.ndarray) -> np.ndarray:
        each = [weighted(weights, values) for (i, j), values in cells.items() if i != j]
        return np.asarray(np.mean(each, axis=0))

    without = int(np.isnan(means).sum())
    told = f"in {without} of {means.size} cells no episode has the metric" if without else ""
    found = [
        draws.of("self-play", within, notes=told),
        draws.of("cross-play", across, notes=told),
        draws.of("gap", lambda w: within(w) - across(w), null=0.0, notes=told),
    ]
    if independent and count > 2:
        found += over_runs(means)
    return found


def over_runs(means: np.ndarray) -> list[Estimate]:
    """The same with intervals over training runs, of a matrix of cell means."""
    parts: dict[str, Callable[[Sequence[int]], float]] = {
        "self-play, over runs": lambda kept: self_play(means, kept),
        "cross-play, over runs": lambda kept: cross_play(means, kept),
        "gap, over runs": lambda kept: self_play(means, kept) - cross_play(means, kept),
    }
    return [
        jackknife(name, part, len(means), null=0.0 if name.startswith("gap") else None)
        for name, part in parts.items()
    ]


def self_play(means: np.ndarray, kept: Sequence[int]) -> float:
    """Mean of the diagonal over the agents that are kept."""
    return float(np.mean([means[i, i] for i in kept]))


def cross_play(means: np.ndarray, kept: Sequence[int]) -> float:
    """Mean of what lies off the diagonal; NaN with fewer than two agents."""
    pairs = [means[i, j] for i in kept for j in kept if i != j]
    return float(np.mean(pairs)) if pairs else float("nan")
