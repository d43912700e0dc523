"""Rejection sampling: keeps the joint trajectories that went well; all agents imitate them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from selfplay.credit.attempts import decisive
from selfplay.credit.base import CreditMethod
from selfplay.rng import derive
from selfplay.types import Group, Sample, Status, Turn, from_json, to_json


class RejectionSampling(CreditMethod):
    """Samples of good episodes, old and new, for objective=sft (SiriuS, 2502.04780).

    An episode is good if its metric `measure` lies above `above`. The newest trajectories are kept,
    at most `capacity`, and `per_task` of one task. Each step draws `batch` of them. If moves were
    played again, those that led to the episode's end are kept (see `attempts.decisive`). Failure
    mode: right answers for wrong reasons count too.
    """

    compares = "batch"

    def __init__(
        self,
        *,
        measure: str = "accuracy",
        above: float = 0.5,
        batch: int = 64,
        capacity: int = 1024,
        per_task: int = 4,
        seed: int = 0,
    ) -> None:
        """Args:
        measure: Metric of an episode.
        above: Value that the metric of a good episode exceeds.
        batch: Trajectories per step.
        capacity: Trajectories that are kept.
        per_task: Trajectories of one task that are kept.
        seed: Seed of the draws.
        """
        self.measure, self.above, self.seed = measure, above, seed
        self.metrics_read = {"measure": measure}
        self.without_metric = f"so its value is 0, and a good one is above {above:g}"
        self.batch, self.capacity, self.per_task = batch, capacity, per_task
        if min(batch, capacity, per_task) < 1:
            raise ValueError("batch, capacity and per_task are at least 1")
        self._kept: list[tuple[str, list[Turn]]] = []
        self._draws = self._added = 0

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Keep the good episodes; return samples of all turns of the drawn trajectories."""
        finished = (e for group in groups for e in group.episodes if e.status is Status.FINISHED)
        good = (e for e in finished if e.metrics.get(self.measure, 0.0) > self.above)
        new = [(episode.task.id, decisive(episode)) for episode in good]
        newest, self._added = Counter[str](), len(new)
        kept: list[tuple[str, list[Turn]]] = []
        for task, turns in reversed([*self._kept, *new]):
            newest[task] += 1
            if newest[task] <= self.per_task and len(kept) < self.capacity:
                kept.append((task, turns))
        self._kept = kept[::-1]
        self._draws += 1
        rng = Random(derive(self.seed, "experience", self._draws))
        drawn = rng.sample(self._kept, min(self.batch, len(self._kept)))
        return [
            Sample(turn=turn, advantage=1.0, group=f"experience/{task}")
            for task, turns in drawn
            for turn in turns
            if turn.trainable
        ]

    def metrics(self) -> Mapping[str, float]:
        """Return the numbers of kept trajectories and tasks, and of good episodes in this step."""
        tasks = {task for task, _ in self._kept}
        return {"kept": len(self._kept), "added": self._added, "tasks": len(tasks)}

    def state_dict(self) -> dict[str, Any]:
        """Return the trajectories and the number of draws so far."""
        kept = [[task, list(map(to_json, turns))] for task, turns in self._kept]
        return {"kept": kept, "draws": self._draws}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the trajectories. Raises ValueError for the state of another method."""
        if set(state) != {"kept", "draws"}:
            raise ValueError(f"RejectionSampling keeps trajectories, but got {sorted(state)}")
        self._draws = int(state["draws"])
        self._kept = [(t, [from_json(Turn, turn) for turn in turns]) for t, turns in state["kept"]]
