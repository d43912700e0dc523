"""A fixed set of tasks, drawn without replacement in a seeded order, over and over."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from selfplay.errors import ConfigError
from selfplay.rng import derive
from selfplay.types import Group, Task


class FixedTasks:
    """Draws the tasks of the config in random order."""

    def __init__(self, *, tasks: Sequence[Task], batch: int, seed: int = 0) -> None:
        """Args:
        tasks: The set of tasks.
        batch: Tasks per step.
        seed: Seed of the order.
        """
        if not tasks:
            raise ConfigError("curriculum: the list of tasks is empty")
        if batch < 1:
            raise ConfigError(f"curriculum: batch is at least 1, not {batch}")
        self._tasks, self.batch, self.seed = list(tasks), batch, seed
        self._drawn = 0

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        """Return the next `batch` tasks; every pass over the set has its own order."""
        batch: list[Task] = []
        while len(batch) < self.batch:
            lap, index = divmod(self._drawn, len(self._tasks))
            order = self._tasks[:]
            Random(derive(self.seed, "order", lap)).shuffle(order)
            taken = order[index : index + self.batch - len(batch)]
            batch += taken
            self._drawn += len(taken)
        return batch

    @property
    def reads_outcomes(self) -> bool:
        """False, except for a subclass with its own `observe`."""
        return type(self).observe is not FixedTasks.observe

    def observe(self, groups: Sequence[Group], step: int) -> None:
        pass

    def ready(self) -> bool:
        return True

    def metrics(self) -> dict[str, float]:
        """Return `laps`, the number of passes over the set so far."""
        return {"laps": self._drawn / len(self._tasks)}

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the order."""
        return {"drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position."""
        self._drawn = int(state["drawn"])
