"""Credit turns the rewards of groups into advantages.

A method chooses a return, a baseline and a scale.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from selfplay.types import Group, Sample


@runtime_checkable
class Stateful(Protocol):
    """An object that is trained and must survive a checkpoint; its state may hold tensors."""

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer and counters."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...


class Credit(Protocol):
    """A credit method: turns the rewards of a step's groups into samples with advantages.

    The config group `credit` builds it. The training loop calls `assign` once per step, between
    sampling and the learners. A method that keeps averages between steps keeps them in its state.
    """

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return one sample per turn of every episode that did not fail, in order.

        Turns that are not trainable get no sample. A method for branching episodes makes one sample
        of a turn that several episodes share. Methods that make pairs, that reject turns, or that
        keep turns of earlier steps, return only the samples to learn from in this step. `by_role`
        returns the samples role by role.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain data."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...

    def modules(self) -> Mapping[str, Stateful]:
        """Return the trained modules (a critic) by name; checkpoints store them with the
        learners."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return metrics of the last call of `assign`."""
        ...
