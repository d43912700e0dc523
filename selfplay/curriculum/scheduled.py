"""A curriculum whose tasks hold a number that changes with the training step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from selfplay.author_code import check_members, saved_state
from selfplay.curriculum import Curriculum, reads_outcomes
from selfplay.errors import ConfigError
from selfplay.types import Group, Task


class ScheduledTasks:
    """Adds a number p(i), which depends on the training step i, to each task of another curriculum.

    p(i) = start + (base^(i / steps) - 1) / (base - 1) * (end - start), the schedule of noise of
    ZeroSearch (2505.04588), whose base is 4; it is linear for base 1, and stays at `end` after
    `steps`. The arena finds p(i) under `key` in the payload of a task.
    """

    def __init__(
        self,
        *,
        curriculum: Curriculum,
        key: str,
        start: float,
        end: float,
        steps: int,
        base: float = 4.0,
    ) -> None:
        """Args:
        curriculum: Gives the tasks, and observes the episodes.
        key: Key of the number in the payload.
        start: The number before the first step.
        end: The number at step `steps`.
        steps: Length of the schedule, in training steps.
        base: Base of the exponential; above 1, most of the change comes late.
        """
        if steps < 1 or base <= 0:
            raise ConfigError("curriculum: steps is at least 1, and base is above 0")
        check_members(curriculum, "curriculum", "curriculum.curriculum")
        self.curriculum, self.key = curriculum, key
        self.start, self.end, self.steps, self.base = start, end, steps, base
        self._value = start

    @property
    def reads_outcomes(self) -> bool:
        """True if the other curriculum reads outcomes."""
        return reads_outcomes(self.curriculum)

    def value(self, step: int) -> float:
        """Return p of a step; a step before training has the p of step 0, which is `start`."""
        part = min(max(step, 0) / self.steps, 1.0)
        if self.base != 1:
            part = (self.base**part - 1) / (self.base - 1)
        return self.start + part * (self.end - self.start)

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        """Return the tasks of the step with its number."""
        return [self.refreshed(task, step) for task in self.curriculum.tasks(step, attempt)]

    def refreshed(self, task: Task, step: int) -> Task:
        """Return a task, which may be of an earlier step, with the number of this step."""
        self._value = self.value(step)
        return replace(task, payload={**task.payload, self.key: self._value})

    def observe(self, groups: Sequence[Group], step: int) -> None:
        """Pass the episodes on."""
        self.curriculum.observe(groups, step)

    def ready(self) -> bool:
        """Return True if the other curriculum is ready."""
        return self.curriculum.ready()

    def metrics(self) -> dict[str, float]:
        """Return the number of the last step under `key`, and the other curriculum's metrics."""
        return {**self.curriculum.metrics(), self.key: self._value}

    def state_dict(self) -> dict[str, Any]:
        """Return the other curriculum's state: the number follows from the step."""
        return saved_state(self.curriculum, "curriculum.curriculum")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the other curriculum's state."""
        self.curriculum.load_state_dict(state)
