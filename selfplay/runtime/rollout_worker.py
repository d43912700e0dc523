"""A rollout worker: a process that plays episodes for the driver.

Its engine applies the driver's updates between two steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.runtime.engine_worker import EngineWorker
from selfplay.types import Episode


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """The result of a chunk of jobs, which a worker returns to the driver."""

    episodes: Sequence[Episode]
    """Episodes in the order of the jobs."""
    counts: Mapping[str, float]
    """Metrics of services and engines by name."""


class RolloutWorker(EngineWorker):
    """Ray actor with threads that play, receive updates, and answer, at the same time."""

    def run(
        self, jobs: Sequence[EpisodeSpec], evaluation: str | None, number: int
    ) -> RolloutResult:
        """Play jobs of training or of an evaluation, after all updates up to `number` are here."""
        if self._fault is not None:
            raise self._fault
        assert self._engine is not None and self._setup is not None
        self._inbox.wait(number, self._timeout)
        self._engine.wake()
        self._engine.catch_up()
        players = self._setup
        rollout = players.rollout if evaluation is None else players.rollouts[evaluation]
        episodes = rollout.run(jobs)
        self._engine.catch_up()
        return RolloutResult(episodes=episodes, counts=players.counts())
