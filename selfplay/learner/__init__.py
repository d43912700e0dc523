"""The learner turns samples into gradient steps: objective, batch, learner."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from selfplay.types import Sample


class Trainer(Protocol):
    """What improves one policy: a learner, or what stands for learners elsewhere."""

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know of how the model is computed."""
        ...

    def update(self, samples: Sequence[Sample], *, step: int) -> dict[str, float]:
        """One pass over the samples; returns metrics."""
        ...

    def weights(self) -> Mapping[str, Any]:
        """What an engine is given to sample with, as a state dictionary."""
        ...

    def begin_again(self) -> None:
        """Forget everything but the weights that the policy has in this process."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All but the weights, which are saved with the policy."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the policy's weights of this process and what `state_dict` gave."""
        ...


@runtime_checkable
class Sharded(Protocol):
    """A trainer whose state no process holds whole: it has files of its own, which a learner of one
    process reads by `shards.load`."""

    def save_shards(self, folder: Path) -> Mapping[str, str]:
        """Write everything but the weights into a folder that is there; SHA-256 by file name."""
        ...

    def load_shards(self, folder: Path) -> None:
        """Go on with the policy's weights of this process and what was written there."""
        ...
