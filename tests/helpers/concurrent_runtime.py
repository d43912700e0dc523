"""A runtime that plays beside the learner, in a thread of one process."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from transformers import PreTrainedModel

from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import LearnersLost
from selfplay.rollout.rollout import Job, Play
from selfplay.rollout.setup import Players
from selfplay.runtime.local import Local
from selfplay.types import Completion, Episode


class Apart(TransformersEngine):
    """Serves copies, so that a learner may write to its own tensors while they are asked."""

    def __init__(self) -> None:
        super().__init__(stride=1)
        self.partial = True
        self._between_steps = Lock()

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        super().serve(policy, copy.deepcopy(model).requires_grad_(False), end_ids)

    def step(self) -> list[Completion]:
        with self._between_steps:
            return super().step()

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        with self._between_steps:
            super().publish(policy, weights, version)


class Beside(Local):
    """One call of play at a time, from any thread."""

    def __init__(self, *, max_lag: int = 1) -> None:
        self.max_lag = max_lag
        self._playing = Lock()

    def engine(self, config: Mapping[str, Any], players: Players) -> Apart:
        return Apart()

    def play(self, players: Players, evaluation: str | None = None) -> Play:
        whole = super().play(players, evaluation)

        def play(jobs: Sequence[Job]) -> list[Episode]:
            with self._playing:
                return whole(jobs)

        return play

    def restart(self, lost: LearnersLost, saved: Path | None) -> None:
        """The same learners, restored."""
