"""RLOO: each return minus the mean of the others in its group."""

from collections.abc import Sequence

from selfplay.credit.base import (
    GroupRelative,
    group_relative,
    learnable_turns,
    leave_one_out,
    own_return,
)
from selfplay.types import Group, Sample


class RLOO(GroupRelative):
    """A_i = R_i - mean of the other returns in the group, of agents with a turn (2402.14740).

    R is the sum of the agent's rewards in the whole episode. An agent that has no turn in some
    siblings is compared with the siblings in which it has one; if there is no such sibling, with
    the rewards that it got without a turn in the others.

    With `group_by="agent"` and at least two siblings the expected gradient is exactly the policy
    gradient, also if agents have no turn or episodes end early: the siblings are independent.
    For the other keys see `base.group_key`. Failed episodes are left out: if failing depends on the
    actions, the gradient is that of the episodes that did not fail. Failure mode: a group of one
    has no baseline and no signal.
    """

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns."""
        return group_relative(
            learnable_turns(groups, own_return),
            key=self.among,
            advantage=leave_one_out,
            absent=self.absent,
        )
