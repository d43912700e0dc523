"""Meta-games: players as the moves of a symmetric zero-sum game, by who beats whom.

A payoff matrix A is antisymmetric: A[i, j] is what player i gains on player j, and j loses. Who
chooses a player for a match against somebody who does the same plays this game.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np

from selfplay.errors import ConfigError

TOLERANCE = 1e-7
"""Of the linear programs, in units of the largest payoff: what is nearer is a tie."""
ATTEMPTS: tuple[tuple[str, bool], ...] = (
    *(("highs", True), ("highs-ds", True), ("highs-ipm", True)),
    *(("highs-ds", False), ("highs-ipm", False)),
)
"""(method, presolve) of the linear program, tried in this order until one solves it: payoffs
near the tolerance of a solver can make it fail."""
WORST = 1e-6
"""Largest gain against a mixture that counts as an equilibrium, in units of the largest payoff."""


class NoEquilibriumError(ArithmeticError):
    """No solver found an equilibrium of the payoffs, although every such game has one."""


def nash(payoffs: np.ndarray) -> np.ndarray:
    """[N] the symmetric Nash equilibrium of [N, N] payoffs that has the most entropy.

    It is unique, and copies of a player share what one of them would have: Nash averaging
    (1806.02643), in which a player's score is what it gains on this mixture, A p. A linear program
    finds everybody who is in any equilibrium; within them p is what A p = 0 leaves open, which only
    ties and copies do. Raises ConfigError if scipy is missing, and NoEquilibriumError if no
    solver finds the equilibrium to within `WORST`.
    """
    count, largest = len(payoffs), float(np.abs(payoffs).max())
    if largest == 0:
        return np.full(count, 1 / count)
    scaled = payoffs / largest
    scaled[np.abs(scaled) < 2 * TOLERANCE] = 0.0
    mixture = _widest(scaled)
    inside, found = mixture > 0, np.zeros(count)
    found[inside] = _spread(scaled[:, inside], mixture[inside], inside)
    return found


def _widest(payoffs: np.ndarray) -> np.ndarray:
    """An equilibrium in which everybody is who is in any."""
    count = len(payoffs)
    # q, A q <= 0, is a multiple of an equilibrium, and t <= q, t <= 1 reaches 1 where q can grow.
    bounds = np.block([[payoffs, np.zeros((count, count))], [-np.eye(count), np.eye(count)]])
    told = ""
    for method, presolve in ATTEMPTS:
        solved = solvers().linprog(
            np.repeat([0.0, -1.0], count),
            A_ub=bounds,
            b_ub=np.zeros(2 * count),
            bounds=[(0, None)] * count + [(0, 1)] * count,
            method=method,
            options={"presolve": presolve},
        )
        told = told or str(solved.message)
        if solved.x is None:
            continue
        mixture, reached = solved.x[:count], solved.x[count:]
        kept = np.where(reached > 0.5, mixture, 0.0)
        if kept.sum() > 0 and (payoffs @ kept).max() <= WORST * kept.sum():
            return np.asarray(kept / kept.sum())
    raise NoEquilibriumError(f"no equilibrium was found: {told}")


def _spread(payoffs: np.ndarray, mixture: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The equilibrium of most entropy among those with the players of `mixture`, from it."""
    fixed = np.vstack([payoffs[inside], np.ones(len(mixture))])
    sizes, directions = np.linalg.svd(fixed)[1:]
    free = directions[np.count_nonzero(sizes > TOLERANCE) :].T
    if not free.shape[1]:
        return mixture
    above = np.vstack([np.eye(len(mixture)), -payoffs[~inside]])

    def negative_entropy(move: np.ndarray) -> tuple[float, np.ndarray]:
        chances = np.maximum(mixture + free @ move, 1e-300)
        return float(chances @ np.log(chances)), free.T @ (np.log(chances) + 1)

    solved = solvers().minimize(
        negative_entropy,
        np.zeros(free.shape[1]),
        jac=True,
        method="SLSQP",
        constraints={
            "type": "ineq",
            "fun": lambda move: above @ (mixture + free @ move) + TOLERANCE,
            "jac": lambda move: above @ free,
        },
        options={"ftol": 1e-13, "maxiter": 500},
    )
    if not solved.success:
        raise NoEquilibriumError(f"no equilibrium of most entropy was found: {solved.message}")
    chances = np.maximum(mixture + free @ solved.x, 0.0)
    return np.asarray(chances / chances.sum())


def solvers() -> Any:
    """scipy's; raises ConfigError where it is missing."""
    try:
        from scipy import optimize
    except ModuleNotFoundError as error:
        raise ConfigError("payoffs needs the package scipy: pip install 'selfplay[studies]'") from (
            error
        )
    return optimize


def effective_diversity(payoffs: np.ndarray, mixture: np.ndarray) -> float:
    """What the winners of a match between two draws from the mixture gain (1901.08106).

    0 where one player is all of it, or nobody of it beats anybody; rock, paper, scissors: 1/3.
    """
    return float(mixture @ np.maximum(payoffs, 0.0) @ mixture)


def alpha_rank(payoffs: np.ndarray, *, alpha: float, size: int = 50) -> np.ndarray:
    """[..., N] how long a population in evolution is made of each player: alpha-rank (1903.01373).

    Of `size` copies of one player s one becomes another, r; with u = alpha * size / (size - 1) *
    A[r, s] it takes the population over with chance (1 - exp(-u)) / (1 - exp(-size u)). This is the
    global model of the paper for one population and payoffs [..., N, N] that sum to zero; its local
    model is the same at 2 (size - 1) / size times the alpha. `alpha` is per unit of payoff.
    """
    count = payoffs.shape[-1]
    gain = alpha * size / (size - 1) * np.swapaxes(payoffs, -1, -2)  # [..., from s, to r]
    much = np.maximum(np.abs(gain), 1e-12)
    taken = np.expm1(-much) / np.expm1(-size * much)
    taken *= np.exp(np.minimum((size - 1) * gain, 0.0))
    step = taken / max(count - 1, 1) * (1 - np.eye(count))
    # p (step - its row sums) = 0, whose last equation follows from the others, and sum p = 1.
    flow = np.swapaxes(step, -1, -2) - step.sum(-1)[..., None] * np.eye(count)
    flow[..., -1, :] = 1.0
    whole = np.zeros((*flow.shape[:-1], 1))
    whole[..., -1, 0] = 1.0
    found = np.linalg.solve(flow, whole)[..., 0]
    return np.where(found < 1e-12, 0.0, np.minimum(found, 1.0))


def sizes(payoffs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[...] sums of squares of the transitive part of [..., N, N] payoffs, and of all of them.

    The transitive part is r[i] - r[j] with r the means of the rows: what a rating could say. The
    rest is cycles, and orthogonal to it (the Hodge decomposition of 1806.02643).
    """
    ratings = payoffs.mean(axis=-1)
    ordered = ratings[..., :, None] - ratings[..., None, :]
    return (ordered**2).sum(axis=(-1, -2)), (payoffs**2).sum(axis=(-1, -2))


def cycles(beats: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """The triples of which each beats the next and the last the first, of [N, N] truths."""
    for a, b, c in combinations(range(len(beats)), 3):
        if beats[a, b] and beats[b, c] and beats[c, a]:
            yield a, b, c
        elif beats[b, a] and beats[c, b] and beats[a, c]:
            yield a, c, b
