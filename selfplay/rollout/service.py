"""Optional methods of a service, which is an object that the arenas of a run share."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class Closable(Protocol):
    """A service that holds processes or connections."""

    def close(self) -> None:
        """Release the processes and connections."""
        ...


@runtime_checkable
class Measured(Protocol):
    """A service with metrics of its own, such as `selfplay.sandbox.pool.Executor`."""

    def drain_metrics(self) -> Mapping[str, float]:
        """Return the counts since the last call."""
        ...


@runtime_checkable
class HoldsModel(Protocol):
    """A service with a model, such as `arenas.questions.reward_model.RewardModel`."""

    def load_weights(self) -> None:
        """Load the weights, before the first episode; a second call does nothing.

        Only a process that plays episodes calls it.
        """
        ...
