"""Role swap: the contribution of each side's training to the joint gain.

**Definition.** A side is a role, or a single agent if all agents have one role. A role that the
same opponent plays for all players is no side. J[assignment] is the metric when each side is played
by one of the players. With a trained player t and an untrained player 0, the gain of a side alone
is J[t in this side, 0 elsewhere] - J[all 0]. The joint gain is J[all t] - J[all 0]. The
co-adaptation is the joint gain minus the gains of all sides alone; for two sides it is
J[t,t] - J[t,0] - J[0,t] + J[0,0]. It is 0 if the gains add up, and positive if the sides learned to
work with each other. A side's Shapley value is its part in the joint gain: the mean gain of
training this side, over all orders in which the sides could become trained. The Shapley values sum
to the joint gain. For two sides, each value is the gain alone plus half of the co-adaptation. In a
zero-sum game of two sides, the role effect is the mean pay of the first side over all ordered pairs
of different players, and (J - J')/2 is the skill without the role effect.

**Source.** Shapley 1953 (A Value for n-Person Games) for the Shapley values; the decomposition of
an antisymmetric game in 1806.02643 for skill; interaction contrasts of a two-way table for the
rest.

**Estimator.** Every assignment plays the same tasks with the same seeds. The estimates are means of
paired differences, bootstrapped over tasks, or over episodes if there is one task. All lines and
cells are over the games that measure the metric in every assignment, so that they fit together. If
every game does, the estimates are unbiased; otherwise a note counts the games that do.

**Limits.** The results are about these checkpoints: other training runs would vary more than the
interval says. No policy meets an untrained partner in training, so a low J[t,0] may be confusion
rather than dependence. The Shapley values depend on the untrained policies: another baseline, such
as random play, gives other values.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress, product
from math import factorial

import numpy as np

from selfplay.errors import ConfigError
from selfplay.study.matches import RETURN, StudyMatches
from selfplay.study.measure import PLAYING, Measure, open_games, references_or_start
from selfplay.study.players import StudyPlayer, except_fixed_roles, roles_played_alike
from selfplay.study.plots import Drawing, IntervalPlot, MatrixPlot
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Draws, Estimate, mean

MOST_CELLS = 64
"""Largest number of assignments."""

ROUNDING = 1e-12
"""Largest size of rounding noise in a difference of scores, relative to the largest score."""

Assignment = tuple[int, ...]
"""Index of the player of each side."""


def study(games: StudyMatches, players: Sequence[StudyPlayer]) -> Result:
    """Play every assignment of the players to the sides; the first player is the trained one.

    Raises ConfigError for games of one side, for one player, for too many assignments, or if no
    game measures the metric in every assignment.
    """
    sides = games.sides(players)
    if len(sides) < 2:
        raise ConfigError(
            f"roleswap: {games.arena().name} has fewer than two sides"
            f"{except_fixed_roles(players)}; name a run of a game with two or more"
        )
    if len(players) < 2:
        raise ConfigError("roleswap: one player has no other to swap with; name two, or one RUN")
    if len(players) ** len(sides) > MOST_CELLS:
        raise ConfigError(
            f"roleswap: {len(players)} players in {len(sides)} sides are more than {MOST_CELLS} "
            "assignments; name fewer players"
        )
    played = {
        cell: games.run(
            players[0].seats(games.agents)
            | {
                agent: policy
                for player, agents in zip(cell, sides.values(), strict=True)
                for agent, policy in players[player].seats(agents).items()
            }
        )
        for cell in product(range(len(players)), repeat=len(sides))
    }
    names = [*games.metrics, *(f"{RETURN}/{side}" for side in sides)]
    scores = {
        name: {cell: games.scores(episodes, name) for cell, episodes in played.items()}
        for name in names
    }
    params = games.record()
    common = np.all([np.isfinite(values) for values in scores[names[0]].values()], axis=0)
    if not common.any():
        raise ConfigError(
            f"roleswap: no game measures {names[0]} in every assignment of the players, so nothing "
            "can be compared; play more --episodes, or choose another --metric"
        )
    scores = {
        name: {cell: values[common] for cell, values in cells.items()}
        for name, cells in scores.items()
    }
    draws = games.draws(list(compress(next(iter(played.values())), common)))
    chief = scores[names[0]]
    labels = [player.label for player in players]
    gains = contrasts(chief, draws, sides=list(sides), labels=labels)
    estimates = [
        *gains,
        *role_effect([scores[f"{RETURN}/{side}"] for side in sides], draws),
    ]
    notes = [
        f"{side} never moves in these games, so its player has no effect"
        for side in games.idle(players)
    ]
    if same := roles_played_alike(players):
        notes.append(
            f"the same opponent plays {', '.join(same)} for all players, so "
            f"{'it has' if len(same) == 1 else 'they have'} no gain"
        )
    if not common.all():
        estimates = [replace(each, direction="unknown") for each in estimates]
        notes.append(
            f"{common.sum()} of {len(common)} games measure the metric in every assignment; the "
            "others are left out"
        )
    return Result(
        measure="roleswap",
        title=f"Contribution of each side: {' and '.join(labels)} in {games.arena().name}",
        definition=f"{games.metrics[0]} by assignment. A side's gain alone is the gain with "
        f"{labels[0]} in this side and {labels[1]} everywhere else; co-adaptation is the joint "
        "gain minus the sum of these gains.",
        estimates=estimates,
        tables=[
            _table(names, scores, draws, sides=list(sides), labels=labels),
            *_skill(scores, sides=list(sides), labels=labels),
        ],
        drawings=_drawings(chief, gains, sides=list(sides), labels=labels, metric=names[0]),
        params=params,
        notes=[*games.notes, *notes],
    )


def contrasts(
    scores: Mapping[Assignment, np.ndarray],
    draws: Draws,
    *,
    sides: Sequence[str],
    labels: Sequence[str],
) -> list[Estimate]:
    """Return the effects of the first player in place of the second.

    These are the joint gain, the gain of each side alone, the loss with the second player in each
    side, co-adaptation and Shapley values.

    Args:
        scores: Assignment to [N] scores of its episodes, none of which is missing.
        draws: Resampling of the episodes.
        sides: Names of the sides.
        labels: Names of the players.
    """
    everyone = range(len(sides))
    trained, base = scores[(0,) * len(sides)], scores[(1,) * len(sides)]
    largest = _largest(scores.values())

    def effect(name: str, values: np.ndarray) -> Estimate:
        return _effect(name, values, draws, largest=largest)

    alone = [scores[tuple(0 if s == side else 1 for s in everyone)] - base for side in everyone]
    without = [
        trained - scores[tuple(1 if s == side else 0 for s in everyone)] for side in everyone
    ]
    first, second = labels[:2]
    found = [
        effect(f"joint gain, {first} over {second}", trained - base),
        *(effect(f"gain of {side} alone", gain) for side, gain in zip(sides, alone, strict=True)),
        *(
            effect(f"lost with {second} as {side}", lost)
            for side, lost in zip(sides, without, strict=True)
        ),
    ]
    found.append(effect("co-adaptation", trained - base - sum(alone)))
    return found + [
        effect(f"part of {side} in the joint gain (Shapley value)", part)
        for side, part in zip(sides, shapley(scores, len(sides)), strict=True)
    ]


def _largest(scores: Iterable[np.ndarray]) -> float:
    """Return the largest absolute value of the finite scores; 0 if none is finite."""
    return float(max(np.nanmax(np.abs(each), initial=0.0) for each in scores))


def _effect(name: str, values: np.ndarray, draws: Draws, *, largest: float) -> Estimate:
    """Return the mean of differences of scores, without rounding noise.

    A value that is no larger than `ROUNDING` times the largest score is 0.

    Args:
        name: Name of the estimate.
        values: [N] difference of each episode.
        draws: Resampling of the episodes.
        largest: Largest absolute score.
    """
    noise = ROUNDING * largest
    found = draws.mean(name, np.where(np.abs(values) <= noise, 0.0, values), null=0.0)
    low, value, high = (
        0.0 if abs(each) <= noise else each for each in (found.low, found.value, found.high)
    )
    return replace(found, low=low, value=value, high=high)


def shapley(worth: Mapping[Assignment, np.ndarray], count: int) -> list[np.ndarray]:
    """Return the Shapley value of each side, [N] per episode.

    phi_i is the sum over the sets S of other sides of |S|! (count - |S| - 1)! / count! times the
    gain of adding i to S. It is linear in the worth, so it can be computed for each episode.

    Args:
        worth: Assignment of the trained (0) and untrained (1) player to [N] scores.
        count: Number of sides.
    """
    found = []
    for side in range(count):
        value = np.zeros(())
        for rest in product((0, 1), repeat=count - 1):
            before, after = ((*rest[:side], who, *rest[side:]) for who in (1, 0))
            size = rest.count(0)
            weight = factorial(size) * factorial(count - size - 1) / factorial(count)
            value = value + weight * (worth[after] - worth[before])
        found.append(value)
    return found


def role_effect(returns: Sequence[Mapping[Assignment, np.ndarray]], draws: Draws) -> list[Estimate]:
    """Return the mean pay of the first side over ordered pairs; [] unless the game is zero-sum."""
    if not _zero_sum(returns):
        return []
    pairs = [pay for (i, j), pay in returns[0].items() if i != j]
    name, largest = "role effect, pay of the first side", _largest(returns[0].values())
    return [_effect(name, np.mean(pairs, axis=0), draws, largest=largest)]


def _zero_sum(returns: Sequence[Mapping[Assignment, np.ndarray]]) -> bool:
    return len(returns) == 2 and all(
        np.allclose(np.nan_to_num(pay + returns[1][cell]), 0.0) for cell, pay in returns[0].items()
    )


def _table(
    names: Sequence[str],
    scores: Mapping[str, Mapping[Assignment, np.ndarray]],
    draws: Draws,
    *,
    sides: Sequence[str],
    labels: Sequence[str],
) -> Table:
    rows: list[list[Cell]] = []
    for cell, values in scores[names[0]].items():
        chief = draws.mean("", values)
        others = [draws.mean("", scores[name][cell]).value for name in names[1:]]
        rows.append(
            [*(labels[player] for player in cell), chief.value, chief.low, chief.high, *others]
        )
    columns = [*sides, names[0], "low", "high", *names[1:]]
    return Table(title="By assignment", columns=columns, rows=rows)


def _skill(
    scores: Mapping[str, Mapping[Assignment, np.ndarray]],
    *,
    sides: Sequence[str],
    labels: Sequence[str],
) -> list[Table]:
    returns = [scores[f"{RETURN}/{side}"] for side in sides]
    if not _zero_sum(returns):
        return []
    matrix = _matrix(returns[0], len(labels))
    skill = (matrix - matrix.T) / 2
    skill[np.abs(skill) <= ROUNDING * _largest(returns[0].values())] = 0.0
    return [
        Table(
            title="Skill without the role effect: pay against each other, averaged over the roles",
            columns=["", *labels],
            rows=[
                [label, *(float(v) for v in row)] for label, row in zip(labels, skill, strict=True)
            ],
        )
    ]


def _matrix(cells: Mapping[Assignment, np.ndarray], count: int) -> np.ndarray:
    return np.array([[mean(cells[i, j]) for j in range(count)] for i in range(count)])


def _drawings(
    scores: Mapping[Assignment, np.ndarray],
    gains: Sequence[Estimate],
    *,
    sides: Sequence[str],
    labels: Sequence[str],
    metric: str,
) -> list[Drawing]:
    found: list[Drawing] = []
    if len(sides) == 2:
        found.append(
            MatrixPlot(
                title=f"{metric}: rows are {sides[0]}, columns {sides[1]}",
                rows=labels,
                columns=labels,
                values=_matrix(scores, len(labels)).tolist(),
            )
        )
    found.append(
        IntervalPlot(
            title=f"Gains in {metric}, with 95 % intervals",
            estimates=gains,
            label=f"gain in {metric}",
            null=0.0,
        )
    )
    return found


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    references = references_or_start(options, "roleswap")
    with open_games(options, references[0].run) as games:
        return study(games, games.admit(references))


MEASURE = Measure(
    name="roleswap",
    help="trained and untrained policies in every combination of sides",
    target="players",
    run=from_options,
    options=PLAYING,
)
"""The measure `roleswap` of the command line."""
