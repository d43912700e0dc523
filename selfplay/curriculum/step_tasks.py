"""The tasks of one step, for a step that begins before the earlier step has been played."""

from collections.abc import Mapping, Sequence
from typing import Any

from selfplay.author_code import saved_state
from selfplay.curriculum import Curriculum
from selfplay.curriculum.checked_calls import is_ready, metrics_of, tasks_of
from selfplay.types import Group, Task


class StepTasks:
    """The tasks of one step, with the metrics and the state that the curriculum then had.

    `PrefetchedBatches` makes one for every step that overlaps with others, from a curriculum that
    reads no outcomes. The step's sampler gets it in place of the curriculum, because the curriculum
    may give tasks to later steps before this step ends.
    """

    reads_outcomes = False

    def __init__(self, curriculum: Curriculum, step: int) -> None:
        """Args:
        curriculum: Gives the tasks.
        step: The step.
        """
        self._step, self._tasks = step, tasks_of(curriculum, step)
        self._ready, self._metrics = is_ready(curriculum), metrics_of(curriculum)
        self._state = saved_state(curriculum, "curriculum")

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        """Return the tasks of the step. Raises RuntimeError for another step or a refill."""
        if step != self._step or attempt:
            raise RuntimeError(
                f"step {self._step} overlaps with others, and its sampler asked for tasks again "
                f"(step {step}, attempt {attempt}); set refills = True in the class of the sampler"
            )
        return self._tasks

    def observe(self, groups: Sequence[Group], step: int) -> None:
        pass

    def ready(self) -> bool:
        """Return True if the curriculum was ready at that time."""
        return self._ready

    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics at that time."""
        return self._metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the curriculum's state at that time."""
        return self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise RuntimeError, because only the curriculum itself is restored."""
        raise RuntimeError(f"the tasks of step {self._step} have no state to restore")
