"""TRR++: returns standardised per task type and role over the whole batch."""

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

    Three task types and two roles make Absolute Zero's six baselines. A proposer makes one proposal
    per prompt, so it has no siblings to be compared with; over the batch it has. Statistics are per
    trajectory; the released code whitens over response tokens, so that longer answers weigh more.
    Biased: the mean and the spread that judge a return contain this return.
    Failure mode: the baseline knows the type but not the task, so easy tasks push all of their
    answers up, and the variance is that of the whole batch.
    """

    def __init__(self, *, epsilon: float = 1e-6) -> None:
        """`epsilon` keeps the division finite."""
        self.epsilon = epsilon

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Advantages of all turns."""
        return group_relative(
            learnable_turns(groups, own_return),
            key=lambda play: (play.group.episodes[play.episode].task.type, play.turn.role),
            advantage=lambda values: standardized(values, epsilon=self.epsilon),
        )
