"""Learning progress: a task's author is paid for the change when the task is played again."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from selfplay.credit.base import CreditMethod, learnable_turns, own_return, standardized
from selfplay.credit.rewards import mean
from selfplay.credit.waiting_turns import Learns, WaitingTurns
from selfplay.types import Group, Sample, Status


class LearningProgress(CreditMethod):
    """A = (R - mean) / (std + epsilon) over the turns of authors whose R is known in this step.

    R of the turns of an episode that created a task is `later - first`. `first` is the metric
    `measure` of this episode; `later` is its mean in the first step in which the task is played
    again, at least `delay` steps after this episode (learning progress, as in 1910.07224). The
    turns are kept until then, at most `patience` steps, and from then on until their policy learns;
    without the metric they give no sample. A turn of an episode that created nothing has R at once:
    the agent's return. Use this method in `by_role`, for authors alone. A kept turn was sampled by
    older weights: a ratio corrects for this. Failure mode: the difference of two values is noisy.
    """

    compares = "batch"
    without_metric = "so no author of a task is paid"

    def __init__(
        self,
        *,
        measure: str = "score",
        delay: int = 1,
        patience: int = 20,
        absolute: bool = False,
        epsilon: float = 1e-6,
        learns: Learns | None = None,
    ) -> None:
        """Args:
        measure: Metric of an episode.
        delay: Least number of steps until the task is played again.
        patience: Largest number of these steps.
        absolute: True pays the size of a change, so that forgetting counts too.
        epsilon: Added to the standard deviation.
        learns: Function, True if a policy learns in a step; None: all learn in every step.
        """
        self.measure, self.absolute, self.epsilon = measure, absolute, epsilon
        self.metrics_read = {"measure": measure}
        self.waiting = WaitingTurns(delay=delay, patience=patience, learns=learns)
        self._progress: list[float] = []
        self._dropped = 0

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return samples of the turns that are paid now; keep those that have to wait."""
        self.waiting.step += 1
        every = [e for g in groups for e in g.episodes if e.status is not Status.FAILED]
        later: dict[str, list[float]] = {}
        for episode in every:
            if not episode.created and self.measure in episode.metrics:
                later.setdefault(episode.task.id, []).append(episode.metrics[self.measure])
        due = self.waiting.take({task: mean(values) for task, values in later.items()})
        due = [(abs(change) if self.absolute else change, turn) for change, turn in due]
        self._progress, self._dropped = [change for change, _ in due], self.waiting.drop()
        turns = learnable_turns(groups, own_return)
        for _, own in groupby(turns, lambda credited: (credited.group.id, credited.episode)):
            credited_turns = list(own)
            episode = credited_turns[0].group.episodes[credited_turns[0].episode]
            if not episode.created:
                due += [(credited.value, credited.turn) for credited in credited_turns]
            elif self.measure in episode.metrics:
                made = [credited.turn for credited in credited_turns]
                self.waiting.keep(episode.created[0].id, episode.metrics[self.measure], made)
        pay = standardized(np.array([value for value, _ in due]), epsilon=self.epsilon)
        return [
            Sample(turn=turn, advantage=float(each), group=f"progress/{self.waiting.step}")
            for (_, turn), each in zip(due, pay, strict=True)
        ]

    def metrics(self) -> Mapping[str, float]:
        """Return the numbers of turns paid, waiting and dropped, and the mean progress."""
        counts = {"paid": len(self._progress), "waiting": len(self.waiting)}
        return {**counts, "dropped": self._dropped, "progress": mean(self._progress)}

    def state_dict(self) -> dict[str, Any]:
        return self.waiting.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.waiting.load_state_dict(state)
