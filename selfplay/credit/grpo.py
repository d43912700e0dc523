"""GRPO: returns standardised within the group."""

from collections.abc import Sequence
from functools import partial

from selfplay.credit.base import AmongSiblings, Within, compare, own_return, plays, standardized
from selfplay.types import Group, Sample


class GRPO(AmongSiblings):
    """A = (R - mean) / (std + epsilon), std with ddof 1, within the group (2402.03300).

    R is what the agent was paid in the whole episode; every turn of it gets the same A. An agent
    that has no turn in some siblings is compared with those in which it has one; if no other
    sibling has one, it has no signal.
    Biased: the mean and the spread that judge a return contain this return.
    Failure mode: dividing by the spread weighs tasks that are nearly always or never solved up
    (the difficulty bias that Dr. GRPO removes), and a group of equal returns has no signal.
    """

    def __init__(self, *, within: Within = "role", epsilon: float = 1e-6) -> None:
        """`within`: whom to compare with inside the group, see `comparison.group_key`."""
        super().__init__(within=within)
        self.scale = partial(standardized, epsilon=epsilon)

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Advantages of all turns."""
        return compare(plays(groups, own_return), key=self.among, advantage=self.scale)
