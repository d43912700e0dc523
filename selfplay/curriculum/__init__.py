"""A curriculum says which tasks come next and is told what happened."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from selfplay.types import Group, Task


class Curriculum(Protocol):
    """Where tasks come from. Its state is part of the checkpoint."""

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        """The tasks of a step; `attempt` counts the refills of the same step."""
        ...

    def observe(self, groups: Sequence[Group], step: int) -> None:
        """What became of them."""
        ...

    def ready(self) -> bool:
        """False while the curriculum still gathers tasks and nothing should be learned yet."""
        ...

    def metrics(self) -> dict[str, float]:
        """Figures of the curriculum's state."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep, as plain JSON data."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        ...
