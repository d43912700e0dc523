"""Credit turns the rewards of groups into advantages. Every method is return x baseline x scale."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from selfplay.types import Group, Sample


class Stateful(Protocol):
    """What is trained and must survive a checkpoint: its state may hold tensors."""

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer and counters."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        ...


class Credit(Protocol):
    """A credit method. One that keeps averages between steps has them in its state."""

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """One sample per turn of every episode that did not fail, in their order, but none of a
        turn that nobody learns from; a method of branches makes one of a turn that several episodes
        share."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep, as plain data."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        ...

    def modules(self) -> Mapping[str, Stateful]:
        """What it trains (a critic), by name; a checkpoint keeps it beside the learners."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Figures of the last call of `assign`."""
        ...
