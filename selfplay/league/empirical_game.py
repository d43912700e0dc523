"""Empirical games (meta-games): the players are the moves of a symmetric zero-sum game.

A payoff matrix A is antisymmetric: A[i, j] is the gain of player i against player j, and the loss
of j. Two people who each choose a player for a match play this game.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np

from selfplay.errors import import_package

TOLERANCE = 1e-7
"""Tolerance of the linear programs in units of the largest payoff; smaller payoffs are ties."""
ATTEMPTS: tuple[tuple[str, bool], ...] = (
    *(("highs", True), ("highs-ds", True), ("highs-ipm", True)),
    *(("highs-ds", False), ("highs-ipm", False)),
)
"""(method, presolve) of the linear program, tried in this order until one solves it: payoffs
near the tolerance of a solver can make it fail."""
WORST = 1e-6
"""Largest gain against a mixture that counts as an equilibrium, in units of the largest payoff."""


class NoEquilibriumError(ArithmeticError):
    """Raised if no solver finds an equilibrium, although every such game has one."""


def nash(payoffs: np.ndarray) -> np.ndarray:
    """Return [N], the symmetric Nash equilibrium of [N, N] payoffs with the largest entropy.

    It is unique, and copies of a player split the probability of that player: Nash averaging
    (1806.02643). The score of a player is its gain against this mixture, A p. A linear program
    finds all players that are in any equilibrium. Among these players, A p = 0 determines p up to
    ties and copies, and the entropy decides the rest.

    Raises:
        ConfigError: If scipy is missing.
        NoEquilibriumError: If no solver finds the equilibrium to within `WORST`.
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
    """Return [N], an equilibrium with every player that is in any, of [N, N] payoffs."""
    count = len(payoffs)
    # The variables are q, t >= 0. Each q with A q <= 0 is a multiple of an equilibrium, and the sum
    # of t <= min(q, 1) is maximised. If a player is in any equilibrium, its q can grow to 1.
    bounds = np.block([[payoffs, np.zeros((count, count))], [-np.eye(count), np.eye(count)]])
    reason = ""
    for method, presolve in ATTEMPTS:
        solved = solvers().linprog(
            np.repeat([0.0, -1.0], count),
            A_ub=bounds,
            b_ub=np.zeros(2 * count),
            bounds=[(0, None)] * count + [(0, 1)] * count,
            method=method,
            options={"presolve": presolve},
        )
        reason = reason or str(solved.message)
        if solved.x is None:
            continue
        mixture, reached = solved.x[:count], solved.x[count:]
        kept = np.where(reached > 0.5, mixture, 0.0)
        if kept.sum() > 0 and (payoffs @ kept).max() <= WORST * kept.sum():
            return np.asarray(kept / kept.sum())
    raise NoEquilibriumError(f"no equilibrium was found: {reason}")


def _spread(payoffs: np.ndarray, mixture: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the equilibrium of the largest entropy among those with the players of `mixture`."""
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
    """Return scipy's module of solvers. Raises ConfigError if scipy is missing."""
    import_package("scipy", "studies", "equilibrium of players")
    from scipy import optimize

    return optimize


def effective_diversity(payoffs: np.ndarray, mixture: np.ndarray) -> float:
    """Return the expected gain of the winner of a match between two draws of the mixture.

    `payoffs` is [N, N], `mixture` [N]. The result is 0 for a single player and for players that all
    tie, and 1/3 for rock, paper, scissors (1901.08106).
    """
    return float(mixture @ np.maximum(payoffs, 0.0) @ mixture)


def alpha_rank(payoffs: np.ndarray, *, alpha: float, size: int = 50) -> np.ndarray:
    """Return [..., N], alpha-rank (1903.01373): the fraction of time an evolving population is
    made of each player.

    In a population of `size` copies of player s, one copy becomes player r. With u = alpha * size
    / (size - 1) * A[r, s], r takes over the population with probability (1 - exp(-u)) / (1 -
    exp(-size u)). This is the paper's global model for one population and zero-sum payoffs
    [..., N, N]; the local model is the same at 2 (size - 1) / size times the alpha. `alpha` is per
    unit of payoff.
    """
    count = payoffs.shape[-1]
    gain = alpha * size / (size - 1) * np.swapaxes(payoffs, -1, -2)  # [..., from s, to r]
    much = np.maximum(np.abs(gain), 1e-12)
    taken = np.expm1(-much) / np.expm1(-size * much)
    taken *= np.exp(np.minimum((size - 1) * gain, 0.0))
    step = taken / max(count - 1, 1) * (1 - np.eye(count))
    # p (step - its row sums) = 0; its last equation follows from the others and makes room for
    # sum p = 1.
    flow = np.swapaxes(step, -1, -2) - step.sum(-1)[..., None] * np.eye(count)
    flow[..., -1, :] = 1.0
    whole = np.zeros((*flow.shape[:-1], 1))
    whole[..., -1, 0] = 1.0
    found = np.linalg.solve(flow, whole)[..., 0]
    return np.where(found < 1e-12, 0.0, np.minimum(found, 1.0))


def sizes(payoffs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return [...] sums of squares of the transitive part of [..., N, N] payoffs, and of all.

    The transitive part is r[i] - r[j] with r the means of the rows: the part that a rating can
    express. The rest consists of cycles and is orthogonal to it (the Hodge decomposition of
    1806.02643).
    """
    ratings = payoffs.mean(axis=-1)
    ordered = ratings[..., :, None] - ratings[..., None, :]
    return (ordered**2).sum(axis=(-1, -2)), (payoffs**2).sum(axis=(-1, -2))


def cycles(beats: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield the triples in which each player beats the next, and the last beats the first.

    Args:
        beats: [N, N] True if the row beats the column.
    """
    for a, b, c in combinations(range(len(beats)), 3):
        if beats[a, b] and beats[b, c] and beats[c, a]:
            yield a, b, c
        elif beats[b, a] and beats[c, b] and beats[a, c]:
            yield a, c, b
