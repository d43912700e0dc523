"""A rollout worker: a process that plays episodes for the driver.

Its engine applies the driver's updates between two steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Condition

from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.runtime.engine_worker import EngineWorker
from selfplay.types import Episode


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """The result of a chunk of episodes, which a worker returns to the driver."""

    episodes: Sequence[Episode]
    """Episodes in the order of the specifications."""
    counts: Mapping[str, float]
    """Metrics of services and engines by name."""


class RolloutWorker(EngineWorker):
    """Ray actor with threads that play, receive updates, and answer questions at the same time.

    If steps overlap, several threads call `run`, and their episodes share one queue.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed = Condition()
        self._runs = 0
        """Number of calls of `run` that play."""
        self._evaluation: str | None = None
        """Evaluation of these calls; None: training."""

    def run(
        self, specs: Sequence[EpisodeSpec], evaluation: str | None, number: int
    ) -> RolloutResult:
        """Play episodes of training or of an evaluation, after all updates up to `number`.

        Episodes of training join those of training in progress, unless they need an update that
        must wait until no request is in flight, such as a new policy. Raises the error of `begin`,
        if it failed, and StalledError if an update does not arrive in time.
        """
        self._begun.wait()
        if self._fault is not None:
            raise self._fault
        assert self._engine is not None and self._setup is not None
        self._inbox.wait(number, self._timeout)
        players, engine = self._setup, self._engine
        with self._changed:
            self._changed.wait_for(lambda: not self._runs or self._may_join(evaluation))
            if not self._runs:
                engine.wake()
                engine.catch_up()
                self._evaluation = evaluation
            self._runs += 1
        rollout = players.rollout if evaluation is None else players.rollouts[evaluation]
        played = False
        try:
            episodes = rollout.run(specs)
            played = True
        finally:
            with self._changed:
                self._runs -= 1
                self._changed.notify_all()
                if played and not self._runs:  # after an error requests may be in flight
                    engine.catch_up()
        return RolloutResult(episodes=episodes, counts=players.drain_counts())

    def _may_join(self, evaluation: str | None) -> bool:
        """Return True if episodes may begin while others are in progress."""
        assert self._engine is not None
        training = evaluation is None and self._evaluation is None
        return training and not self._engine.holds_updates()
