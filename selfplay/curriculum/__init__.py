"""A curriculum chooses the next tasks and observes the episodes that were played."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from selfplay.types import Group, Task


class Curriculum(Protocol):
    """A source of tasks. Its state is part of the checkpoint.

    The config group `curriculum` makes it; a sampler calls `tasks` and `observe` in every step. A
    curriculum whose `observe` does nothing may set `reads_outcomes = False`. A curriculum whose
    tasks depend on the step may have `refreshed(task, step)`, which a mixture calls for a task that
    it plays later than it was drawn. A curriculum that needs more than 200 rounds to gather its
    first tasks sets `gathering_rounds` to their number (`gathering.check_gathering`).
    """

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        """Return the tasks of a step.

        `attempt` is a different number for each request of tasks in one step; a sampler's first
        request has 0.
        """
        ...

    def observe(self, groups: Sequence[Group], step: int) -> None:
        """Take note of the episodes that were played."""
        ...

    def ready(self) -> bool:
        """Return False while the curriculum still gathers tasks and nothing should be learned
        yet."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return metrics of the curriculum's state."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain JSON data."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...


def reads_outcomes(curriculum: Curriculum) -> bool:
    """Return True if tasks, metrics or state of a curriculum may depend on episodes.

    A curriculum with the attribute `reads_outcomes = False` states that its `observe` changes
    nothing. Steps that are sampled ahead can then overlap (`sampler.prefetch`). A curriculum
    without the attribute counts as one that reads outcomes.
    """
    return bool(getattr(curriculum, "reads_outcomes", True))
