"""TRR++: returns standardized per task type and role over the whole batch."""

from collections.abc import Sequence

from selfplay.credit.base import (
    StatelessCredit,
    group_relative,
    learnable_turns,
    own_return,
    standardized,
)
from selfplay.types import Group, Sample


class TRR(StatelessCredit):
    """A = (R - mean) / (std + epsilon) over all trajectories of a task type and role (2505.03335).

    R is the sum of the agent's rewards in the whole episode. Three task types and two roles make
    Absolute Zero's six baselines. A proposer makes one proposal per prompt, so it has no siblings
    within its group and is compared with the whole batch. The std has ddof 1. Statistics are per
    trajectory; the released code whitens over response tokens, so that longer answers weigh more.
    Biased: each return is part of its own mean and standard deviation. Failure mode: the baseline
    knows the type but not the task, so all answers to easy tasks get positive advantages, and the
    variance is that of the whole batch.
    """

    compares = "batch"

    def __init__(self, *, epsilon: float = 1e-6) -> None:
        """Args:
        epsilon: Added to the standard deviation, so that the division stays finite.
        """
        self.epsilon = epsilon

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns."""
        return group_relative(
            learnable_turns(groups, own_return),
            key=lambda credited: (
                credited.group.episodes[credited.episode].task.type,
                credited.turn.role,
            ),
            advantage=lambda values: standardized(values, epsilon=self.epsilon),
        )
