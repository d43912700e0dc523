"""Role swap: who learned what, seat by seat.

**Definition.** J[assignment] is the metric when each side (a role, or an agent where all have one
role) is taken by one of the players. Of two players, trained t and untrained 0: the gain of a side
alone is J[t in it, 0 elsewhere] - J[all 0]; the co-adaptation is the joint gain J[all t] - J[all 0]
less all gains of sides alone, for two sides J[t,t] - J[t,0] - J[0,t] + J[0,0]. It is 0 where what
the sides learned adds up, above 0 where they learned to work with each other. A side's *share* of
the joint gain is its Shapley value: what training it adds, in the mean over all orders in which the
sides could become trained, the others as they are by then. The shares sum to the joint gain; of two
sides a share is the gain alone and half of the co-adaptation, of more it also tells with whom. In a
zero-sum game of two sides, the role effect is the mean pay of the first over all ordered pairs of
different players, and (J - J')/2 is skill without it.

**Source.** Shapley 1953 (A Value for n-Person Games) for the shares; the decomposition of an
antisymmetric game in 1806.02643 for skill; interaction contrasts of a two-way table for the rest.

**Estimator.** Every assignment plays the same tasks with the same seeds; means of paired
differences, bootstrapped over tasks, or over episodes within tasks where tasks are few. Unbiased.

**Limits.** About these checkpoints: other training runs would move more than the interval says. An
untrained policy is a partner that nobody meets in training; a low J[t,0] may be confusion rather
than dependence. Every share is against these untrained policies: with others in their place, such
as random play, the same training has other shares.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import factorial
from typing import Any

import numpy as np

from selfplay.errors import ConfigError
from selfplay.study.matches import RETURN, StudyMatches
from selfplay.study.players import StudyPlayer
from selfplay.study.plots import Drawing, IntervalPlot, MatrixPlot
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Draws, Estimate, mean

MOST_CELLS = 64
"""Assignments that are played."""

Assignment = tuple[int, ...]
"""For each side the number of the player that takes it."""


def study(games: StudyMatches, players: Sequence[StudyPlayer]) -> Result:
    """Play every assignment of the players to the sides. The first player is "trained"."""
    sides = games.sides()
    if len(sides) < 2:
        raise ConfigError(
            f"roleswap: {games.arena().name} has one seat; name a run of a game of two or more"
        )
    if len(players) < 2:
        raise ConfigError("roleswap: one player has nobody to swap with; name two, or one RUN")
    if len(players) ** len(sides) > MOST_CELLS:
        raise ConfigError(
            f"roleswap: {len(players)} players in {len(sides)} seats are more than {MOST_CELLS} "
            "assignments; name fewer players"
        )
    played = {
        cell: games.run(
            {
                agent: policy
                for player, agents in zip(cell, sides.values(), strict=True)
                for agent, policy in players[player].seats(agents).items()
            }
        )
        for cell in product(range(len(players)), repeat=len(sides))
    }
    draws = games.draws(next(iter(played.values())))
    names = [*games.metrics, *(f"{RETURN}/{side}" for side in sides)]
    scores = {
        name: {cell: games.scores(episodes, name) for cell, episodes in played.items()}
        for name in names
    }
    chief = scores[names[0]]
    labels = [player.label for player in players]
    estimates = [
        *contrasts(chief, draws, sides=list(sides), labels=labels),
        *role_effect([scores[f"{RETURN}/{side}"] for side in sides], draws),
    ]
    idle = [
        f"{side} never moves in these games: who sits there is no matter" for side in games.idle()
    ]
    return Result(
        measure="roleswap",
        title=f"Who learned what: {' and '.join(labels)} in the seats of {games.arena().name}",
        definition=f"{games.metrics[0]} by who sits where. A side's gain alone is that of putting "
        f"{labels[0]} there and {labels[1]} everywhere else; co-adaptation is what the joint gain "
        "has beyond the sum of these.",
        estimates=estimates,
        tables=[
            _table(names, scores, draws, sides=list(sides), labels=labels),
            *_skill(scores, sides=list(sides), labels=labels),
        ],
        drawings=_drawings(chief, draws, sides=list(sides), labels=labels, metric=names[0]),
        params=games.record(),
        notes=[*games.notes, *idle],
    )


def contrasts(
    scores: Mapping[Assignment, np.ndarray],
    draws: Draws,
    *,
    sides: Sequence[str],
    labels: Sequence[str],
) -> list[Estimate]:
    """Gains of the first player over the second: joint, alone, together, and each side's share."""
    everyone = range(len(sides))
    trained, base = scores[(0,) * len(sides)], scores[(1,) * len(sides)]
    alone = [scores[tuple(0 if s == side else 1 for s in everyone)] - base for side in everyone]
    without = [
        trained - scores[tuple(1 if s == side else 0 for s in everyone)] for side in everyone
    ]
    first, second = labels[:2]
    found = [
        draws.mean(f"joint gain, {first} over {second}", trained - base, null=0.0),
        *(
            draws.mean(f"gain of {side} alone", gain, null=0.0)
            for side, gain in zip(sides, alone, strict=True)
        ),
        *(
            draws.mean(f"lost with {second} as {side}", lost, null=0.0)
            for side, lost in zip(sides, without, strict=True)
        ),
    ]
    found.append(draws.mean("co-adaptation", trained - base - sum(alone), null=0.0))
    shares = shapley(scores, len(sides))
    known = int(np.isfinite(shares[0]).sum())
    failed = known < len(shares[0])
    notes = f"of {known} games that failed in no assignment, and of their joint gain"
    more: dict[str, Any] = {"null": 0.0, "notes": notes if failed else ""}
    return found + [
        draws.mean(f"share of {side} in the joint gain (Shapley value)", share, **more)
        for side, share in zip(sides, shares, strict=True)
    ]


def shapley(worth: Mapping[Assignment, np.ndarray], count: int) -> list[np.ndarray]:
    """The Shapley value of each of `count` sides, of the worth of who is trained (0) and not (1).

    phi_i = sum over the sets S of others of |S|! (count - |S| - 1)! / count! times what i adds to
    S. Linear in the worth, so that episodes keep their places: [N] each, where worth is [N].
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
    """The mean pay of the first side over ordered pairs; none unless two sides sum to zero."""
    if not _zero_sum(returns):
        return []
    pairs = [pay for (i, j), pay in returns[0].items() if i != j]
    return [draws.mean("role effect, pay of the first side", np.mean(pairs, axis=0), null=0.0)]


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
    return Table(title="By who sits where", columns=columns, rows=rows)


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
    return [
        Table(
            title="Skill without the role effect: pay against each other, roles taken in turn",
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
    draws: Draws,
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
    gains = contrasts(scores, draws, sides=sides, labels=labels)
    found.append(
        IntervalPlot(
            title=f"Gains in {metric}, with 95 % intervals",
            estimates=gains,
            null=0.0,
        )
    )
    return found
