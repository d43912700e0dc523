"""REINFORCE++: returns whitened over all tokens of the batch."""

from collections.abc import Sequence
from typing import Literal, get_args

from selfplay.credit.base import (
    GroupBy,
    GroupRelative,
    centred,
    group_advantages,
    learnable_turns,
    own_return,
    samples,
    whitened,
)
from selfplay.errors import check_choice
from selfplay.types import Group, Sample

Baseline = Literal["none", "group"]


class ReinforcePlusPlus(GroupRelative):
    """A = (R - mean) / (std + epsilon) over all trainable tokens of the batch (2501.03262).

    The batch is that of one policy: all roles that it plays are whitened together.
    `baseline="group"` (REINFORCE++-baseline) first subtracts the group's mean from R. R is the sum
    of the agent's rewards in the whole episode, which is the paper's return per token for a
    discount of 1 and pay at the end; a KL penalty belongs to the objective and is not part of R.

    Biased: an answer's own return and length are part of the mean and the std, but with N tokens
    only by the order of 1/N. Failure mode: without the group's baseline, all answers to easy tasks
    get positive advantages and all answers to hard tasks negative ones.
    """

    compares = "batch"

    def __init__(
        self, *, baseline: Baseline = "none", group_by: GroupBy = "role", epsilon: float = 1e-6
    ) -> None:
        """Args:
        baseline: group subtracts the group's mean before whitening.
        group_by: Key of the group's mean, see `base.group_key`.
        epsilon: Added to the standard deviation.
        """
        super().__init__(group_by=group_by)
        check_choice("baseline", baseline, get_args(Baseline))
        self.baseline, self.epsilon = baseline, epsilon

    @property
    def min_group_size(self) -> int:
        """1 without the group's baseline: the batch is enough."""
        return super().min_group_size if self.baseline == "group" else 1

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns."""
        turns = learnable_turns(groups, own_return)
        values = [credited.value for credited in turns]
        if self.baseline == "group":
            values = group_advantages(turns, key=self.among, advantage=centred)
        return samples(turns, whitened(turns, values, epsilon=self.epsilon))
