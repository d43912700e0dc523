"""Samplers choose which episodes a step plays for each task and which of them are learned from."""

from typing import ClassVar, Protocol

from selfplay.curriculum import Curriculum
from selfplay.rollout.rollout import RolloutFn
from selfplay.types import Group


class Sampler(Protocol):
    """Plays the groups of episodes of one step.

    The config group `sampler` makes it; `prefetch` calls `sample` once per step. Shallow copies of
    the sampler sample overlapping steps at the same time. A call may therefore not depend on an
    earlier one, and may not change in place any value that an earlier call stored.
    `base.GroupSampler` has the optional members, with their defaults.
    """

    tree: ClassVar[bool]
    """True if episodes branch off one another, as some credit methods need."""
    refills: ClassVar[bool]
    """True if a step may ask the curriculum for more tasks after it has played some. Steps then do
    not overlap. A sampler without this attribute counts as one with True."""

    def sample(
        self, curriculum: Curriculum, rollout_fn: RolloutFn, *, step: int, seed: int
    ) -> list[Group]:
        """Return the groups to learn from, after the curriculum has observed all groups that were
        played."""
        ...

    def played(self) -> list[Group]:
        """Return all groups of the last call, also those that are not learned from.

        Metrics and records cover all groups; the kept ones alone would be biased.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Return metrics of the last call."""
        ...
