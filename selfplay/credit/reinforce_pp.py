"""REINFORCE++: returns whitened over all tokens of the batch."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

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
from selfplay.types import Group, Sample

Baseline = Literal["none", "group"]


class ReinforcePlusPlus(GroupRelative):
    """A = (R - mean) / (std + epsilon) over all trainable tokens of the batch (2501.03262).

    The batch is a policy's own: whatever roles it plays are whitened together. `baseline="group"`
    (REINFORCE++-baseline) takes the group's mean from R before. R is what the agent was paid in the
    whole episode, which is the paper's return per token for a discount of 1 and pay at the end; a
    KL penalty belongs to the objective and is not in it.

    Biased: an answer's own return and length are in the mean and the spread that judge it, though
    with N tokens by the order of 1/N only. Failure mode: without the group's baseline, easy tasks
    push all of their answers up and hard ones all of theirs down.
    """

    def __init__(
        self, *, baseline: Baseline = "none", group_by: GroupBy = "role", epsilon: float = 1e-6
    ) -> None:
        """`baseline`: what is subtracted before whitening; `group_by`: whose mean the group's
        is."""
        super().__init__(group_by=group_by)
        if baseline not in get_args(Baseline):
            raise ValueError(f"no baseline {baseline!r}; {get_args(Baseline)} are known")
        self.baseline, self.epsilon = baseline, epsilon

    @classmethod
    def min_group_size(cls, settings: Mapping[str, Any]) -> int:
        """Without the group's baseline, the batch is enough."""
        return super().min_group_size(settings) if settings.get("baseline") == "group" else 1

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Advantages of all turns."""
        found = learnable_turns(groups, own_return)
        values = [play.value for play in found]
        if self.baseline == "group":
            values = group_advantages(found, key=self.among, advantage=centred)
        return samples(found, whitened(found, values, epsilon=self.epsilon))
