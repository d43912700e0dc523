"""Dr. GRPO: returns centred within the group, not divided by their standard deviation."""

from collections.abc import Sequence

from selfplay.credit.base import GroupRelative, centred, group_relative, learnable_turns, own_return
from selfplay.types import Group, Sample


class DrGRPO(GroupRelative):
    """A = R - mean within the group, corrected for siblings without the agent (2503.20783).

    R is the sum of the agent's rewards in the whole episode. The expected gradient is (G-1)/G times
    the policy gradient with `group_by="agent"`, because each return is part of its own baseline. An
    agent that has no turn in some siblings is compared with the siblings in which it has one (see
    `RLOO`), times the same (G-1)/G. So the factor holds for agents without a turn and episodes
    that end early. Failure mode: a group of equal returns has no signal.
    """

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns."""
        return group_relative(
            learnable_turns(groups, own_return),
            key=self.among,
            advantage=centred,
            absent=self.absent,
        )
