"""A runtime that plays and learns at the same time, in threads of one process."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Condition, RLock
from typing import Any

from transformers import PreTrainedModel

from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import LearnersLost
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.local import Local
from selfplay.types import Completion, Episode, Request


class CopyingEngine(TransformersEngine):
    """An engine that serves copies of the policies, so that a learner may change its own tensors.

    One thread plays and another one changes the policies. Each call waits for the other's call.
    """

    def __init__(self) -> None:
        super().__init__(stride=1)
        self.in_flight_updates = True
        self._between_steps = RLock()

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        with self._between_steps:
            super().serve(policy, copy.deepcopy(model).requires_grad_(False), end_ids)

    def withdraw(self, policy: str) -> None:
        with self._between_steps:
            super().release(policy)
            super().withdraw(policy)

    def release(self, policy: str) -> None:
        """Keep the memory of a snapshot, which may be playing in a step that is sampled ahead."""

    def add(self, request: Request) -> None:
        with self._between_steps:
            super().add(request)

    def forget(self) -> None:
        with self._between_steps:
            super().forget()

    def step(self) -> list[Completion]:
        with self._between_steps:
            return super().step()

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        with self._between_steps:
            super().publish(policy, weights, version)


class ConcurrentRuntime(Local):
    """A runtime whose rollouts run at the same time. An evaluation waits until no rollout runs."""

    def __init__(self, *, max_staleness: int = 1) -> None:
        self.max_staleness = max_staleness
        self._changed, self._playing = Condition(), 0

    def engine(self, players: RolloutSetup) -> CopyingEngine:
        return CopyingEngine()

    def rollout_fn(self, players: RolloutSetup, evaluation: str | None = None) -> RolloutFn:
        whole = super().rollout_fn(players, evaluation)

        def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
            with self._changed:
                self._changed.wait_for(lambda: evaluation is None or not self._playing)
                self._playing += 1
            try:
                return whole(specs)
            finally:
                with self._changed:
                    self._playing -= 1
                    self._changed.notify_all()

        return play

    def restart(self, lost: LearnersLost, saved: Path | None) -> None:
        """Do nothing: the run goes on with the same learners."""
