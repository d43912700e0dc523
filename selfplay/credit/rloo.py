"""RLOO: each return against the mean of the others in its group."""

from collections.abc import Sequence

from selfplay.credit.comparison import AmongSiblings, compare, leave_one_out, own_return, plays
from selfplay.types import Group, Sample


class RLOO(AmongSiblings):
    """A_i = R_i - mean of R_j over j != i in the group (2402.14740).

    Unbiased where the others' returns do not depend on the action judged: with `within="agent"`
    they are those of independent siblings; for the other choices see `comparison.group_key`.
    Failure mode: a group of one has no baseline and gets no signal.
    """

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Advantages of all turns."""
        return compare(plays(groups, own_return), key=self.among, advantage=leave_one_out)
