"""The arena's own tasks: every game of a step has a task that `Arena.default_task` makes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from selfplay.author_code import TaskMaker, default_task_of
from selfplay.errors import ConfigError
from selfplay.rng import derive
from selfplay.types import Group, Task

GAME = "game"
"""Id of a task without content."""


class DefaultTasks:
    """Asks the arena for the tasks of each step.

    The random draws of a task depend on the seed, the step and the number of the task alone, so
    that a resumed run has the same tasks without a saved state. A task with an empty payload gets
    the id `game`: what differs between its games is drawn from the seed of each episode.
    """

    reads_outcomes: ClassVar[bool] = False

    def __init__(self, *, arena: TaskMaker | Mapping[str, Any], batch: int, seed: int = 0) -> None:
        """Args:
            arena: The arena. An empty mapping stands for a config that chooses no arena; it has
                no tasks.
            batch: Tasks per step.
            seed: Seed of the tasks.

        Raises ConfigError for a batch below 1.
        """
        if batch < 1:
            raise ConfigError(f"curriculum: batch is at least 1, not {batch}")
        self.arena, self.batch, self.seed = arena, batch, seed

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        """Return `batch` tasks of the arena."""
        return [self._task(step, attempt, number) for number in range(self.batch)]

    def _task(self, step: int, attempt: int, number: int) -> Task:
        if isinstance(self.arena, Mapping):
            raise ConfigError("curriculum.arena: no arena is chosen")
        rng = Random(derive(self.seed, "default task", step, attempt, number))
        task = default_task_of(self.arena, rng)
        return task if task.payload else replace(task, id=GAME)

    def observe(self, groups: Sequence[Group], step: int) -> None:
        pass

    def ready(self) -> bool:
        return True

    def metrics(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Read nothing."""
