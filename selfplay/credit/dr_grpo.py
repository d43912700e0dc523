"""Dr. GRPO: returns centred within the group, not divided by their spread."""

from collections.abc import Sequence

from selfplay.credit.comparison import (
    Stateless,
    Within,
    centred,
    compare,
    group_key,
    own_return,
    plays,
)
from selfplay.types import Group, Sample


class DrGRPO(Stateless):
    """A = R - mean within the group (2503.20783).

    The expected gradient is (G-1)/G times the policy gradient, because each return is in its own
    baseline. Failure mode: a group of equal returns has no signal.
    """

    def __init__(self, *, within: Within = "role") -> None:
        """`within`: whom to compare with inside the group, see `comparison.group_key`."""
        self.within: Within = within

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Advantages of all turns."""
        return compare(plays(groups, own_return), key=group_key(self.within), advantage=centred)
