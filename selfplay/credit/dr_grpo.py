"""Dr. GRPO: returns centred within the group, not divided by their spread."""

from collections.abc import Sequence

from selfplay.credit.comparison import AmongSiblings, centred, compare, own_return, plays
from selfplay.types import Group, Sample


class DrGRPO(AmongSiblings):
    """A = R - mean within the group (2503.20783).

    The expected gradient is (G-1)/G times the policy gradient, because each return is in its own
    baseline. Failure mode: a group of equal returns has no signal.
    """

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Advantages of all turns."""
        return compare(plays(groups, own_return), key=self.among, advantage=centred)
