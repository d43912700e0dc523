"""Payoffs: who beats whom in a population, and whether that is an order or goes in circles.

**Definition.** A[i, j] is what player i gains on player j: half the difference of their pay, in the
mean over who sits where. On it the *Nash mixture* and what each player gains on it (Nash
averaging), *alpha-rank* over a range of alpha, the *transitive share* of A (what a rating could
say; the rest is cycles), the *effective diversity* and the *3-cycles*.

**Source.** 1806.02643 for Nash averaging and the split, 1903.01373 for alpha-rank, 1901.08106 for
effective diversity.

**Estimator.** Every ordered pair plays the same tasks with the same seeds; a bootstrap over tasks,
or over episodes if there is one task. Noise is never quite transitive and never quite
cyclic (of N players, 2 / N of its squares are transitive), so what the resamples differ by is taken
off both parts, in each resample twice. The Nash mixture jumps where the sign of an entry changes:
in place of an interval, how often a player is in it; resamples that no solver can solve are left
out and counted.

**Limits.** About these players: one more may change everybody's place but that on the Nash mixture,
and nobody's strength against those who are absent is measured. In units of pay; the order by wins
may be another. Noise makes cycles, so that those beyond it are counted too, pair by pair.
"""

from collections.abc import Sequence

import numpy as np

from selfplay.errors import ConfigError
from selfplay.run.formatting import number
from selfplay.study.matches import RETURN, StudyMatches
from selfplay.study.measures.matchups import ALPHAS, Matchups, Pays, shape
from selfplay.study.players import StudyPlayer
from selfplay.study.plots import CurvePlot, Drawing, IntervalPlot, MatrixPlot, undrawn
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Draws, Estimate
from selfplay.study.stats.empirical_game import (
    NoEquilibriumError,
    alpha_rank,
    cycles,
    nash,
    solvers,
)

NASH_RESAMPLES = 500
"""Of the resamples, those of which the Nash mixture is worked out: each takes milliseconds."""
PRESENT = 0.01
"""The share by alpha-rank under which a player is one of the last."""
ALPHA = "alpha x largest payoff"
MOST_CYCLES = 20
"""Cycles that are listed."""


def study(games: StudyMatches, players: Sequence[StudyPlayer]) -> Result:
    """Play every ordered pair, and look at the matrix."""
    sides = games.sides()
    if len(sides) != 2:
        raise ConfigError(
            f"payoffs: {games.arena().name} has {len(sides)} seat(s), and who beats whom is "
            "asked of two; measure roleswap, or crossplay where they are a team"
        )
    if len(players) < 2:
        raise ConfigError(
            "payoffs: one player has nobody to beat; name several: runs, checkpoints as RUN@STEP, "
            "or with --opponent NAME whom the run can seat"
        )
    labels = [player.label for player in players]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"payoffs: {label} is named twice; name each player once")
    if games.episodes < 2:
        raise ConfigError("payoffs: of one game nothing tells what is noise; at least 2 are needed")
    solvers()  # a missing package is told of before anything is played
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
        logarithmic=True,
    )
    return Result(
        measure="payoffs",
        title=f"Who beats whom: {len(players)} players in {games.arena().name}",
        definition="What each player (rows) gains on each other (columns): half the difference of "
        "their pay, in the mean over who sits where. Whether that is an order or goes in circles, "
        "and who is left where everybody may choose whom to be.",
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


def run_pairs(games: StudyMatches, players: Sequence[StudyPlayer]) -> tuple[Pays, Draws, list[str]]:
    """What everybody gains on everybody in each game, how intervals are made, and what to know.

    Raises ConfigError where a side never moves, or where the sides are a team.
    """
    (first, ones), (second, others) = games.sides().items()
    pays, sums, draws = {}, [], None
    for i, player in enumerate(players):
        for j, opponent in enumerate(players):
            if i == j:
                continue
            episodes = games.run({**player.seats(ones), **opponent.seats(others)})
            draws = draws or games.draws(episodes)
            one, other = (games.scores(episodes, f"{RETURN}/{side}") for side in (first, second))
            pays[i, j] = (one - other) / 2
            sums.append(one + other)
    assert draws is not None
    for side in games.idle():
        raise ConfigError(
            f"payoffs: {side} never moves in these games, so that nobody can beat it; name others "
            "with --evaluation"
        )
    total = np.concatenate(sums).round(9)
    total = total[np.isfinite(total)]
    odd = 1 - np.unique(total, return_counts=True)[1].max(initial=0) / max(len(total), 1)
    if odd and not any(np.nan_to_num(pay).any() for pay in pays.values()):
        raise ConfigError(
            "payoffs: both sides are always paid the same, so that nobody beats anybody; measure "
            "crossplay"
        )
    notes = []
    if odd:
        notes.append(
            f"in {100 * odd:.1f} % of the games what both are paid together is not what it is in "
            "the others: this says who is paid more than the other, not who is paid much"
        )
    return pays, draws, notes


def settled(shares: np.ndarray) -> str:
    """From which alpha on the order is the one of the last, in words; [alphas, N] shares."""
    kept = np.where(shares >= PRESENT, shares, 0.0).round(6)
    order = np.sign(kept[:, :, None] - kept[:, None, :])
    changed = np.flatnonzero((order != order[-1]).any(axis=(1, 2)))
    first = int(changed[-1]) + 1 if len(changed) else 0
    who = f"the order by alpha-rank, everybody under {100 * PRESENT:g} % being last,"
    if first == len(shares) - 1:
        return f"{who} still changes at the largest {ALPHA}"
    return f"{who} is the same from {ALPHA} = {number(float(ALPHAS[first]))} on"


def _matrix_table(found: Matchups) -> Table:
    rows = zip(found.labels, found.whole, strict=True)
    return Table(
        title="What the rows gain on the columns",
        columns=["", *found.labels],
        rows=[[label, *map(float, row)] for label, row in rows],
    )


def _mixture(payoffs: np.ndarray) -> np.ndarray:
    """[N] the Nash mixture; NaN if no solver finds it."""
    try:
        return nash(payoffs)
    except NoEquilibriumError:
        return np.full(len(payoffs), np.nan)


def _inside(drawn: np.ndarray) -> tuple[np.ndarray, int]:
    """[N] in what fraction of [resamples, N, N] matrices each player is part of the Nash mixture,
    and how many of these matrices no solver solved: they are left out."""
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
    """Notes on matrices that no solver could solve."""
    found = []
    if np.isnan(mixture).any():
        found.append(
            "no solver found the Nash mixture of the matrix, so the mixture and all values that "
            "depend on it are not given"
        )
    if unsolved:
        found.append(
            f"no solver found the Nash mixture of {unsolved} resamples: left out of the share of "
            "resamples in it"
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
    scores = (found.whole @ mixture).round(9) + 0.0  # and no -0
    rows: list[list[Cell]] = [
        [
            found.labels[n],
            *(float(x) for x in (gains[n].value, mixture[n], inside[n], scores[n])),
            *(ranks[n].value, ranks[n].low, ranks[n].high),
        ]
        for n in order
    ]
    columns = ["", "gain", "Nash", "share of resamples in it", "gain on Nash"]
    return Table(
        title=f"Who is left; alpha-rank at {ALPHA} = {ALPHAS[-1]:g}",
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
            title="What the rows gain on the columns",
            rows=labels,
            columns=labels,
            values=found.whole[np.ix_(order, order)].tolist(),
        ),
        IntervalPlot(
            title="Gain on the others, with 95 % intervals",
            estimates=[gains[n] for n in order],
            null=0.0,
        ),
        IntervalPlot(
            title="Who is left: Nash mixture, and alpha-rank with 95 % intervals",
            estimates=shown,
        ),
    ]
