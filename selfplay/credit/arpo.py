"""ARPO: what branches share gets the mean of their advantages."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import partial
from typing import ClassVar

from selfplay.credit.base import (
    CreditedTurn,
    GroupBy,
    GroupRelative,
    centred,
    group_advantages,
    learnable_turns,
    own_return,
    samples,
    standardized,
)
from selfplay.credit.tree import places
from selfplay.types import Group, Sample


class ARPO(GroupRelative):
    """A = (R - mean) / (std + epsilon) per trajectory; a shared turn gets the mean of its A
    (2507.19849, hard advantage attribution).

    R is what the agent was paid in the whole episode, all episodes of the group counted alike. A
    turn that several episodes share is one sample, not one per episode: its tokens are learned
    from once. (Soft attribution, plain GRPO on every branch, learns from them once per branch:
    credit=grpo.)

    Biased: branches of one stem are no independent siblings, their returns all stand in the
    baseline of the stem that they have in common. Failure mode: a stem that the whole group goes
    through has no signal, and one that most of it goes through has little.
    """

    tree: ClassVar[bool] = True

    def __init__(
        self, *, group_by: GroupBy = "role", std: bool = True, epsilon: float = 1e-6
    ) -> None:
        """`group_by`: whom to compare with, see `comparison.group_key`; `std` divides by the
        group's standard deviation."""
        super().__init__(group_by=group_by)
        self.scale = partial(standardized, epsilon=epsilon) if std else centred

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """One sample per turn that was played, with the first episode that has it."""
        found = learnable_turns(groups, own_return)
        advantages = group_advantages(found, key=self.among, advantage=self.scale)
        first: dict[Hashable, CreditedTurn] = {}
        through: dict[Hashable, list[float]] = defaultdict(list)
        for place, play, advantage in zip(places(found), found, advantages, strict=True):
            first.setdefault(place, play)
            through[place].append(advantage)
        means = [sum(through[place]) / len(through[place]) for place in first]
        return samples(list(first.values()), means)
