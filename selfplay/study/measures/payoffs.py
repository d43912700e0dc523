"""Payoffs: which players beat which others, and if this is an order or cycles.

**Definition.** A[i, j] is the gain of player i against player j: half the difference of their pay,
averaged over both seatings. The study derives from A the *Nash mixture* and each player's gain
against it (Nash averaging), *alpha-rank* over a range of alpha, the *transitive share*, which is
the fraction of A that a rating can express (the rest is cycles), the *effective diversity* and the
*3-cycles*.

**Source.** 1806.02643 for Nash averaging and the split, 1903.01373 for alpha-rank, 1901.08106 for
effective diversity.

**Estimator.** Every ordered pair plays the same tasks with the same seeds; a bootstrap over tasks,
or over episodes if there is one task. Pure noise is partly transitive and partly cyclic (2 / N of
its squares are transitive for N players). The variance of the noise is therefore subtracted from
both parts, and for each resample also that of the resampling. The variance of the noise is
estimated from resamples of tasks alone, because intervals of two to nine tasks also draw within the
tasks. The Nash mixture jumps when the sign of an entry changes. Instead of an interval, it has the
fraction of resamples with the player in the mixture. Resamples that no solver can solve are left
out and counted.

**Limits.** The results are about these players: a new player may change all ranks except the score
of Nash averaging, and the strength against absent players is not measured. The unit is pay; the
order by wins may be different. Noise creates cycles, so cycles beyond noise are counted separately.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from selfplay.errors import ConfigError
from selfplay.league.empirical_game import (
    NoEquilibriumError,
    alpha_rank,
    cycles,
    nash,
    solvers,
)
from selfplay.run.formatting import counted, number
from selfplay.study.matches import RETURN, StudyMatches
from selfplay.study.measure import (
    CHANGES,
    EPISODES,
    EVALUATION,
    SEED,
    Measure,
    Option,
    open_games,
    references_of,
)
from selfplay.study.measures.matchups import ALPHAS, Matchups, Pays, shape
from selfplay.study.players import StudyPlayer, except_fixed_roles
from selfplay.study.plots import CurvePlot, Drawing, IntervalPlot, MatrixPlot, undrawn
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Draws, Estimate

NASH_RESAMPLES = 500
"""Number of resamples with a Nash mixture, because each takes milliseconds."""
PRESENT = 0.01
"""Alpha-rank below which a player counts as last."""
ALPHA = "alpha x largest payoff"
MOST_CYCLES = 20
"""Largest number of listed cycles."""


def study(games: StudyMatches, players: Sequence[StudyPlayer]) -> Result:
    """Play every ordered pair, and analyse the matrix of gains.

    Raises ConfigError unless the games have two sides and there are two different players or more.
    """
    sides = games.sides(players)
    if len(sides) != 2:
        raise ConfigError(_not_two(games.arena().name, list(sides), except_fixed_roles(players)))
    if len(players) < 2:
        raise ConfigError(
            "payoffs: one player has no opponent; name several: runs, checkpoints as RUN@STEP, or "
            "with --opponent NAME an opponent of the run"
        )
    labels = [player.label for player in players]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"payoffs: {label} is named twice; name each player once")
    if games.episodes < 2:
        raise ConfigError("payoffs: one game does not show the noise; at least 2 are needed")
    solvers()  # raises for a missing package before any game is played
    pays, draws, notes = run_pairs(games, players)
    found = Matchups.of(pays, draws, labels)
    shares = np.array([alpha_rank(found.whole, alpha=alpha) for alpha in found.alphas()])
    ranks = [found.ranked(place) for place in range(len(players))]
    gains = [found.gain(place) for place in range(len(players))]
    mixture = _mixture(found.whole)
    inside, unsolved = _inside(found.drawn[:NASH_RESAMPLES])
    notes += _unsolved(mixture, unsolved)
    order = sorted(range(len(players)), key=lambda n: (-round(ranks[n].value, 6), -gains[n].value))
    sweep = CurvePlot(
        title="Alpha-rank by the strength of selection",
        x=ALPHAS.tolist(),
        series={found.labels[n]: shares[:, n].tolist() for n in order},
        bands={},
        xlabel=ALPHA,
        label="weight",
        logarithmic=True,
    )
    return Result(
        measure="payoffs",
        title=f"Payoffs: {len(players)} players in {games.arena().name}",
        definition="The gain of each player (rows) against each other (columns): half the "
        "difference of their pay, averaged over both seatings. The transitive share and the "
        "3-cycles separate order from cycles; the Nash mixture and alpha-rank show which players "
        "remain if all may choose their player.",
        estimates=[*(gains[place] for place in order), *shape(found, mixture)],
        tables=[
            _matrix_table(found),
            _standing(found, gains, ranks, mixture, inside, order),
            Table(
                title="Alpha-rank by the strength of selection",
                columns=[ALPHA, *found.labels],
                rows=[
                    [float(a), *map(float, row)]
                    for a, row in zip(ALPHAS, shares.round(6), strict=True)
                ],
            ),
            *_cycles(found),
        ],
        drawings=[*_drawings(found, gains, ranks, mixture, order), sweep],
        params={**games.record(), "metric": "half the difference of pay"},
        notes=[*games.notes, *notes, settled(shares), *undrawn([sweep])],
    )


def _not_two(arena: str, sides: Sequence[str], besides: str) -> str:
    """Return the error about games that do not have two sides."""
    names = f": {', '.join(sides)}" if sides else ""
    advice = (
        "measure roleswap, or crossplay for a team, or name a run of a game of two sides"
        if len(sides) > 2
        else "name a run of a game of two sides"
    )
    return (
        f"payoffs: {arena} has {counted(len(sides), 'side')}{besides}{names}; payoffs needs two "
        "(a side is a role, whose agents play together, or one agent if all have the same role); "
        f"{advice}"
    )


def run_pairs(games: StudyMatches, players: Sequence[StudyPlayer]) -> tuple[Pays, Draws, list[str]]:
    """Return the gains of every pair in each game, the resampling for intervals, and notes.

    Raises ConfigError if a side never moves, or if the sides are a team.
    """
    (first, _), (second, others) = games.sides(players).items()
    pays, sums, draws = {}, [], None
    for i, player in enumerate(players):
        for j, opponent in enumerate(players):
            if i == j:
                continue
            episodes = games.run({**player.seats(games.agents), **opponent.seats(others)})
            draws = draws or games.draws(episodes)
            one, other = (games.scores(episodes, f"{RETURN}/{side}") for side in (first, second))
            pays[i, j] = (one - other) / 2
            sums.append(one + other)
    assert draws is not None
    for side in games.idle(players):
        raise ConfigError(
            f"payoffs: {side} never moves in these games, so no player can beat it; name other "
            "games with --evaluation"
        )
    total = np.concatenate(sums).round(9)
    total = total[np.isfinite(total)]
    odd = 1 - np.unique(total, return_counts=True)[1].max(initial=0) / max(len(total), 1)
    if odd and not any(np.nan_to_num(pay).any() for pay in pays.values()):
        raise ConfigError(
            "payoffs: both sides are always paid the same, so no player beats another; measure "
            "crossplay"
        )
    notes = []
    if odd:
        notes.append(
            f"in {100 * odd:.1f} % of the games the sum of both players' pay differs from the "
            "other games: a gain means more pay than the other player, not much pay"
        )
    return pays, draws, notes


def settled(shares: np.ndarray) -> str:
    """Return a note with the alpha from which on the order of the players is constant.

    `shares` are [alphas, N] alpha-ranks, which give this order.
    """
    kept = np.where(shares >= PRESENT, shares, 0.0).round(6)
    order = np.sign(kept[:, :, None] - kept[:, None, :])
    changed = np.flatnonzero((order != order[-1]).any(axis=(1, 2)))
    first = int(changed[-1]) + 1 if len(changed) else 0
    who = f"the order by alpha-rank, with all players under {100 * PRESENT:g} % last,"
    if first == len(shares) - 1:
        return f"{who} still changes at the largest {ALPHA}"
    return f"{who} is the same from {ALPHA} = {number(float(ALPHAS[first]))} on"


def _matrix_table(found: Matchups) -> Table:
    rows = zip(found.labels, found.whole, strict=True)
    return Table(
        title="Gain of the rows against the columns",
        columns=["", *found.labels],
        rows=[[label, *map(float, row)] for label, row in rows],
    )


def _mixture(payoffs: np.ndarray) -> np.ndarray:
    """Return [N] the Nash mixture; NaN if no solver finds it."""
    try:
        return nash(payoffs)
    except NoEquilibriumError:
        return np.full(len(payoffs), np.nan)


def _inside(drawn: np.ndarray) -> tuple[np.ndarray, int]:
    """Solve [resamples, N, N] matrices for their Nash mixtures.

    Returns:
        [N] fractions of the solved matrices whose mixture has the player; and the number of
        matrices without a solution.
    """
    # Without randomness all resamples are the same matrix. Rounding shows which are the same; one
    # of them is solved unrounded, because a solver can fail on rounded ties.
    _, places, counts = np.unique(drawn.round(9), axis=0, return_index=True, return_counts=True)
    mixtures = np.array([_mixture(drawn[place]) for place in places])
    known = np.isfinite(mixtures).all(axis=1)
    times = counts * known
    if not times.any():
        return np.full(drawn.shape[-1], np.nan), int(counts.sum())
    return times @ (np.nan_to_num(mixtures) > 0) / times.sum(), int(counts[~known].sum())


def _unsolved(mixture: np.ndarray, unsolved: int) -> list[str]:
    """Return notes on matrices that no solver could solve."""
    found = []
    if np.isnan(mixture).any():
        found.append(
            "no solver found the Nash mixture of the matrix, so the mixture and all values that "
            "depend on it are not given"
        )
    if unsolved:
        found.append(
            f"no solver found the Nash mixture of {unsolved} resamples: left out of the fraction "
            "of resamples in it"
        )
    return found


def _standing(
    found: Matchups,
    gains: Sequence[Estimate],
    ranks: Sequence[Estimate],
    mixture: np.ndarray,
    inside: np.ndarray,
    order: Sequence[int],
) -> Table:
    scores = (found.whole @ mixture).round(9) + 0.0  # + 0.0 turns -0 into 0
    rows: list[list[Cell]] = [
        [
            found.labels[n],
            *(float(x) for x in (gains[n].value, mixture[n], inside[n], scores[n])),
            *(ranks[n].value, ranks[n].low, ranks[n].high),
        ]
        for n in order
    ]
    columns = ["", "gain", "Nash", "fraction of resamples in it", "gain on Nash"]
    return Table(
        title=f"Ranking; alpha-rank at {ALPHA} = {ALPHAS[-1]:g}",
        columns=[*columns, "alpha-rank", "low", "high"],
        rows=rows,
    )


def _cycles(found: Matchups) -> list[Table]:
    clear = found.clear()
    listed: list[tuple[float, float, str]] = []
    for triple in cycles(found.whole > 0):
        pairs = list(zip(triple, (*triple[1:], triple[0]), strict=True))
        names = " > ".join(found.labels[n] for n in (*triple, triple[0]))
        away, gain = (min(float(x[pair]) for pair in pairs) for x in (clear, found.whole))
        listed.append((away, gain, names))
    if not listed:
        return []
    listed.sort(key=lambda row: (-row[0], -row[1], row[2]))
    return [
        Table(
            title=f"3-cycles, the clearest {min(len(listed), MOST_CYCLES)} of {len(listed)}",
            columns=["", "least gain", "in standard deviations"],
            rows=[[names, gain, away] for away, gain, names in listed[:MOST_CYCLES]],
        )
    ]


def _drawings(
    found: Matchups,
    gains: Sequence[Estimate],
    ranks: Sequence[Estimate],
    mixture: np.ndarray,
    order: Sequence[int],
) -> list[Drawing]:
    labels = [found.labels[n] for n in order]
    points = [Estimate(name=f"{found.labels[n]}: Nash", value=float(mixture[n])) for n in order]
    shown = [
        each
        for n, point in zip(order, points, strict=True)
        for each in (point, ranks[n])
        if not np.isnan(each.value)
    ]
    return [
        MatrixPlot(
            title="Gain of the rows against the columns",
            rows=labels,
            columns=labels,
            values=found.whole[np.ix_(order, order)].tolist(),
        ),
        IntervalPlot(
            title="Gain against the others, with 95 % intervals",
            estimates=[gains[n] for n in order],
            label="gain, pay per game",
            null=0.0,
        ),
        IntervalPlot(
            title="Nash mixture, and alpha-rank with 95 % intervals",
            estimates=shown,
            label="weight",
        ),
    ]


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    references = references_of(options)
    with open_games(options, references[0].run) as games:
        opponents = games.seated(options.opponent or (), option="--opponent")
        return study(games, [*games.admit(references), *opponents])


MEASURE = Measure(
    name="payoffs",
    help="gains of players against each other: Nash averaging, alpha-rank, order or cycles",
    target="players",
    run=from_options,
    extra="studies",
    options=(
        Option(
            name="opponent",
            metavar="NAME",
            repeated=True,
            help="one more player that the first run can seat: an opponent of its population, or "
            "a snapshot of its league; may be given several times",
        ),
        EVALUATION,
        EPISODES,
        SEED,
        CHANGES,
    ),
    comparable=False,
)
"""The measure `payoffs` of the command line."""
