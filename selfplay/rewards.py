"""Rewards as pure functions that an arena's config names and weighs."""

from collections.abc import Sequence


def learnability(solve_rate: float, *, degenerate: float = 0.0) -> float:
    """What a proposer earns for a task: 1 - s, and `degenerate` where s is 0 or 1.

    A task that nobody or everybody solves teaches nothing. Absolute Zero (2505.03335) pays 0 for
    it; its released code pays -0.5. `solve_rate` s is a mean of verified attempts, in [0, 1].
    """
    if not 0.0 <= solve_rate <= 1.0:
        raise ValueError(f"a solve rate lies in [0, 1], not {solve_rate}")
    return degenerate if solve_rate in (0.0, 1.0) else 1.0 - solve_rate


def composite(outcome: float | None, *, wrong: float = -0.5, malformed: float = -1.0) -> float:
    """Absolute Zero's composite reward (2505.03335).

    The outcome where it is positive, `wrong` where a well-formed answer earned nothing, `malformed`
    where there is no answer (`outcome` is None).
    """
    if outcome is None:
        return malformed
    return outcome if outcome > 0 else wrong


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
