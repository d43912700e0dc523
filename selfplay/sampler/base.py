"""The base class of samplers."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from selfplay.types import Group


class GroupSampler:
    """Base class of samplers, with the defaults of optional members.

    `sample` of a subclass sets `self._played` to all groups that it played.
    """

    tree: ClassVar[bool] = False
    """True if episodes branch off one another, as some credit methods need."""
    refills: ClassVar[bool] = False
    """True if a step may ask the curriculum for more tasks after it has played some. Steps then do
    not overlap."""
    drops_groups: ClassVar[bool] = False
    """True if groups whose returns are all equal are dropped. `check` then prints a line for a
    credit method that can learn from such groups."""
    keeps_all: ClassVar[bool] = False
    """True if all groups that are played are learned from, so that a replay credits all of them."""
    judges_success: ClassVar[bool] = False
    """True if the mean return of all agents decides which episodes are successes. A zero-sum game
    then gets a line in the first step, because this mean is always 0."""
    metrics_read: Mapping[str, str] = MappingProxyType({})
    """Name of a setting of the sampler to the arena metric that this setting names. The first step
    prints a line for a metric that no episode has."""
    without_metric: str = "so it counts as 0"
    """Effect of an episode without a metric of `metrics_read`, for the printed line about it."""
    _played: Sequence[Group] = ()
    """All groups of the last call of `sample`."""

    def played(self) -> list[Group]:
        """Return all groups of the last call of `sample`, also those that are not learned from."""
        return list(self._played)

    def metrics(self) -> dict[str, float]:
        """Return metrics of the last call of `sample`."""
        return {}
