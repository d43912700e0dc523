"""GRPO: returns standardised within the group."""

from collections.abc import Sequence
from functools import partial

from selfplay.credit.base import (
    GroupBy,
    GroupRelative,
    group_relative,
    learnable_turns,
    own_return,
    standardized,
)
from selfplay.types import Group, Sample


class GRPO(GroupRelative):
    """A = (R - mean) / (std + epsilon), std with ddof 1, within the group (2402.03300).

    R is what the agent was paid in the whole episode; every turn of it gets the same A. An agent
    that has no turn in some siblings is compared with those in which it has one; if no other
    sibling has one, it has no signal.
    Biased: the mean and the spread that judge a return contain this return.
    Failure mode: dividing by the spread weighs tasks that are nearly always or never solved up
    (the difficulty bias that Dr. GRPO removes), and a group of equal returns has no signal.
    """

    def __init__(self, *, group_by: GroupBy = "role", epsilon: float = 1e-6) -> None:
        """`group_by`: whom to compare with inside the group, see `comparison.group_key`."""
        super().__init__(group_by=group_by)
        self.scale = partial(standardized, epsilon=epsilon)

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Advantages of all turns."""
        return group_relative(
            learnable_turns(groups, own_return), key=self.among, advantage=self.scale
        )
