"""GRPO: returns standardized within the group."""

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

    R is the sum of the agent's rewards in the whole episode; all turns of the agent get the same A.
    An agent that has no turn in some siblings is compared with those in which it has one; if no
    other sibling has one, it has no signal. Biased: each return is part of its own mean and
    standard deviation. Failure mode: the division gives more weight to tasks that are nearly always
    or nearly never solved (the difficulty bias that Dr. GRPO removes), and a group of equal returns
    has no signal.
    """

    def __init__(self, *, group_by: GroupBy = "role", epsilon: float = 1e-6) -> None:
        """Args:
        group_by: Key of the comparison inside the group, see `base.group_key`.
        epsilon: Added to the standard deviation.
        """
        super().__init__(group_by=group_by)
        self.scale = partial(standardized, epsilon=epsilon)

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns."""
        return group_relative(
            learnable_turns(groups, own_return), key=self.among, advantage=self.scale
        )
