"""A fixed set of tasks, drawn without replacement in a seeded order, over and over."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from selfplay.errors import ConfigError
from selfplay.rng import derive
from selfplay.types import Group, Task


class FixedTasks:
    """The tasks that the config gave."""

    def __init__(self, *, tasks: Sequence[Task], batch: int, seed: int = 0) -> None:
        """`batch` is the number of tasks per step."""
        if not tasks:
            raise ConfigError("curriculum: the list of tasks is empty")
        if batch < 1:
            raise ConfigError(f"curriculum: batch is at least 1, not {batch}")
        self._tasks, self.batch, self.seed = list(tasks), batch, seed
        self._drawn = 0

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        """The next `batch` tasks; every pass over the set has an order of its own."""
        found: list[Task] = []
        while len(found) < self.batch:
            lap, place = divmod(self._drawn, len(self._tasks))
            order = self._tasks[:]
            Random(derive(self.seed, "order", lap)).shuffle(order)
            taken = order[place : place + self.batch - len(found)]
            found += taken
            self._drawn += len(taken)
        return found

    def observe(self, groups: Sequence[Group], step: int) -> None:
        """A fixed set learns nothing from what happened."""

    def ready(self) -> bool:
        """Always."""
        return True

    def metrics(self) -> dict[str, float]:
        """How often the set has been passed over."""
        return {"laps": self._drawn / len(self._tasks)}

    def state_dict(self) -> dict[str, Any]:
        """The position."""
        return {"drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position."""
        self._drawn = int(state["drawn"])
