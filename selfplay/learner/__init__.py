"""The learner turns samples into gradient steps. This module holds its interfaces."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from selfplay.types import Sample


class PolicyLearner(Protocol):
    """The learner of one policy: a `Learner` in this process, or a proxy of learners in other
    processes.

    The runtime makes it; the training loop calls `update` once per step.
    """

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user about how the model is computed."""
        ...

    def update(self, samples: Sequence[Sample], *, step: int) -> dict[str, float]:
        """Make all optimizer steps of one batch. Returns metrics."""
        ...

    def weights(self) -> Any:
        """Return the weights for an engine: a state dictionary, or another object that the
        runtime's engine reads."""
        ...

    def fetch_weights(self) -> None:
        """Bring the policy of this process up to date with learners of other processes."""
        ...

    def begin_again(self) -> None:
        """Reset optimizer, counters and EMA; the policy's weights in this process stay."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything except the weights, which are saved with the policy."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the policy's weights of this process and the state of `state_dict`."""
        ...


@runtime_checkable
class Sharded(Protocol):
    """A learner whose state is divided among processes, each of which writes its own files.

    A learner of one process reads these files by `sharded_checkpoint.load`.
    """

    def fetch_weights(self) -> None:
        """Bring the policy of this process up to date."""
        ...

    def save_shards(self, folder: Path) -> Mapping[str, str]:
        """Write everything except the weights into an existing folder. Returns SHA-256 by file
        name."""
        ...

    def begin_shards(self, folder: Path) -> Callable[[], Mapping[str, str]]:
        """Copy what `save_shards` writes, and begin to write the copy.

        Returns a function that waits for the files. Any thread may call it.
        """
        ...

    def load_shards(self, folder: Path) -> None:
        """Continue with the policy's weights of this process and the files of the folder."""
        ...
