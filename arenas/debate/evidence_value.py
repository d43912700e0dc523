"""Exact values and optimal strategies of the debates in `arenas.debate.evidence`.

Both debaters see the whole passage, so each passage is a small game of its own: a matrix game if
they speak at once, a game of perfect information if one speaks first. A matrix holds the
probability that the honest side wins; rows are the honest side's quotes, columns the other's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from typing import Literal, get_args

import numpy as np

from selfplay.errors import check_choice

Order = Literal["honest_first", "deceptive_first", "together"]
ORDERS: tuple[Order, ...] = get_args(Order)
Rule = Callable[[int, int], float]
"""Function of (honest side's quote, deceptive side's quote), the indices of two different facts; it
returns the probability that the honest side wins."""

FACTS = (3, 5, 7, 9)
"""Numbers of facts that a passage can have; the exact value of 11 facts takes too long."""
SMALL = 1e-9
"""Tolerance of probabilities."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Value of a game and one optimal strategy of each side."""

    value: float
    """Probability that the honest side wins."""
    honest: tuple[float, ...]
    """[facts] probabilities of the facts as the honest side's quote. If this side speaks second,
    its quote is the best answer to the first speaker's optimal quote."""
    deceptive: tuple[float, ...]
    """The same for the deceptive side."""


def check_facts(facts: int) -> None:
    """Raise ValueError for a number of facts that makes no game, or one too large to solve."""
    check_choice("facts", facts, FACTS)


def counters(quote: int, other: int, facts: int) -> bool:
    """Return True if the fact `quote` counters the fact `other`.

    The facts form a circle, and each counters the (facts - 1) / 2 facts before it. So of two facts
    exactly one counters the other, and no fact is best.
    """
    return 1 <= (quote - other) % facts <= (facts - 1) // 2


def circle(facts: int) -> Rule:
    """Return the rule by which the quote that counters the other one wins."""
    return lambda honest, deceptive: float(counters(honest, deceptive, facts))


def supports(facts: int) -> Iterator[tuple[bool, ...]]:
    """Yield each passage as one entry per fact: True if it supports the true answer.

    The true answer is the one that most facts support.
    """
    yield from (each for each in product((True, False), repeat=facts) if 2 * sum(each) > facts)


def chances(
    passage: Sequence[bool], honest: int, deceptive: int, checked: float
) -> tuple[float, float]:
    """Return the probabilities that only the deceptive side is caught, and only the honest one.

    A quote is false if the fact supports the other answer. Each quote is checked with the
    probability `checked`. Two quotes of one fact contradict each other, and both are checked.
    """
    if honest == deceptive:
        checked = 1.0
    found = [checked * (not passage[honest]), checked * passage[deceptive]]
    return found[1] * (1 - found[0]), found[0] * (1 - found[1])


def matrix(passage: Sequence[bool], *, checked: float, rule: Rule) -> np.ndarray:
    """Return [facts, facts] probabilities that the honest side wins.

    A side that is caught loses; if both are caught, each wins with probability 1/2.
    """
    facts = len(passage)
    found = np.zeros((facts, facts))
    for honest, deceptive in product(range(facts), repeat=2):
        lost, gave = chances(passage, honest, deceptive, checked)
        false = (not passage[honest], passage[deceptive])
        both = checked**2 if all(false) and honest != deceptive else 0.0
        rest = 1.0 - lost - gave - both
        ruled = rule(honest, deceptive) if rest > SMALL else 0.0
        found[honest, deceptive] = lost + both / 2 + rest * ruled
    return found


def solve(wins: np.ndarray, order: Order) -> Solution:
    """Return the value and optimal strategies of a passage's game.

    Args:
        wins: [facts, facts] probabilities that the honest side wins, the result of `matrix`.
        order: Order of speaking.
    """
    if order == "honest_first":
        first = int(wins.min(axis=1).argmax())
        second = _one_hot(int(wins[first].argmin()), len(wins))
        return Solution(
            value=float(wins[first].min()), honest=_one_hot(first, len(wins)), deceptive=second
        )
    if order == "deceptive_first":
        turned = solve(1.0 - wins.T, "honest_first")
        return Solution(value=1 - turned.value, honest=turned.deceptive, deceptive=turned.honest)
    return _solve_matrix(wins)


def _one_hot(place: int, count: int) -> tuple[float, ...]:
    return tuple(float(number == place) for number in range(count))


def _solve_matrix(wins: np.ndarray) -> Solution:
    """Solve a matrix game by its square submatrices (Shapley and Snow 1950).

    The arena solves a game per passage. A linear program would need scipy, an optional dependency.
    """
    shifted = wins + 1.0  # the value is positive, so that a nonsingular kernel solves the game
    count = len(wins)
    for size in range(1, count + 1):
        for rows, columns in product(combinations(range(count), size), repeat=2):
            kernel = shifted[np.ix_(rows, columns)]
            if abs(np.linalg.det(kernel)) < SMALL:
                continue
            row, column = (np.linalg.solve(each, np.ones(size)) for each in (kernel.T, kernel))
            if abs(row.sum()) < SMALL:
                continue
            value = 1 / row.sum()
            honest, deceptive = np.zeros(count), np.zeros(count)
            honest[list(rows)], deceptive[list(columns)] = row * value, column * value
            if min(honest.min(), deceptive.min()) < -SMALL:
                continue
            held = (honest @ shifted).min() >= value - SMALL
            if held and (shifted @ deceptive).max() <= value + SMALL:
                return Solution(
                    value=float(value - 1.0),
                    honest=tuple(honest.tolist()),
                    deceptive=tuple(deceptive.tolist()),
                )
    raise ArithmeticError(f"no kernel solves the game {wins.tolist()}")


def value(*, facts: int, checked: float, order: Order, rule: Rule | None = None) -> float:
    """Return the honest side's probability of winning under optimal play, averaged over all
    passages.

    `rule` is the verdict if no side is caught; None: the circle.
    """
    rule = rule or circle(facts)
    found = [
        solve(matrix(passage, checked=checked, rule=rule), order).value
        for passage in supports(facts)
    ]
    return sum(found) / len(found)


def rules(facts: int) -> Iterator[dict[tuple[int, int], bool]]:
    """Yield every deterministic rule as a mapping from two quotes to the winner.

    A key is (quote of the first speaker, quote of the second), and its value is True if the first
    speaker wins. For three facts there are 64 rules.
    """
    pairs = list(permutations(range(facts), 2))
    for chosen in product((True, False), repeat=len(pairs)):
        yield dict(zip(pairs, chosen, strict=True))


def ruled_value(rule: dict[tuple[int, int], bool], *, facts: int, checked: float) -> float:
    """Return the probability of a right verdict under a rule that does not know which side is
    honest.

    The sides speak one after the other; the result is the mean over both orders.
    """
    places: tuple[tuple[Order, Rule], ...] = (
        ("honest_first", lambda h, d: float(rule[h, d])),
        ("deceptive_first", lambda h, d: float(not rule[d, h])),
    )
    found = [
        value(facts=facts, checked=checked, order=order, rule=verdict) for order, verdict in places
    ]
    return sum(found) / len(found)
