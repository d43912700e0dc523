"""No league: every policy plays its own roles."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfplay.checkpoint import Frozen
from selfplay.errors import ConfigError
from selfplay.rollout import Job
from selfplay.sampler import Play
from selfplay.types import Episode


class Alone:
    """What the training loop asks of a league, where there is none."""

    def __init__(self, play: Play) -> None:
        self._play = play

    def begin_step(self, step: int, learning: Collection[str]) -> None:
        """Nothing to seat."""

    def play(self, jobs: Sequence[Job]) -> list[Episode]:
        """The episodes of the jobs as they are."""
        return self._play(jobs)

    def end_step(self) -> dict[str, float]:
        """No figures."""
        return {}

    def mix_anchors(self, share: float, *, until: int) -> None:
        """Raises ConfigError."""
        raise ConfigError("league: there are no anchors without a league; choose league=anchors")

    def frozen(self) -> dict[str, Frozen]:
        """Nothing to keep."""
        return {}

    def written(self, place: Path) -> None:
        """Nothing was."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], place: Path) -> None:
        """Nothing to restore."""
