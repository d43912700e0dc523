"""The rewards of Absolute Zero (2505.03335) for proposer and solver."""


def learnability(solve_rate: float, *, degenerate: float = 0.0) -> float:
    """Return a proposer's reward for a task: 1 - s, or `degenerate` if s is 0 or 1.

    A task that no solver or every solver solves has no learning signal. Absolute Zero (2505.03335)
    pays 0 for it; its released code pays -0.5. `solve_rate` s is the fraction of attempts that are
    correct, in [0, 1]. Raises ValueError for another number.
    """
    if not 0.0 <= solve_rate <= 1.0:
        raise ValueError(f"a solve rate lies in [0, 1], not {solve_rate}")
    return degenerate if solve_rate in (0.0, 1.0) else 1.0 - solve_rate


def composite(outcome: float | None, *, wrong: float = -0.5, malformed: float = -1.0) -> float:
    """Return Absolute Zero's composite reward (2505.03335).

    The reward is `outcome` if that is above 0, `wrong` if it is 0 or less, and `malformed` if there
    is no answer (`outcome` is None).
    """
    if outcome is None:
        return malformed
    return outcome if outcome > 0 else wrong
