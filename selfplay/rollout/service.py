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
