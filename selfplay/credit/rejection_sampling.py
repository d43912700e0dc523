"""Experience: the joint trajectories that went well are kept, and all agents imitate them."""

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

    An episode is good if its metric `measure` lies above `above`. Each step draws `batch` of what
    is kept; before anything is, nothing is learned. Kept are at most `capacity` trajectories and
    `per_task` of one task, the newest; of an episode in which moves were made again those that led
    to its end (see `attempts.decisive`). Failure mode: right answers for wrong reasons count too.
    """

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
        """`batch` and `capacity` count trajectories; `seed` is that of the draws."""
        self.measure, self.above, self.seed = measure, above, seed
        self.metrics_read = {"measure": measure}
        self.batch, self.capacity, self.per_task = batch, capacity, per_task
        if min(batch, capacity, per_task) < 1:
            raise ValueError("batch, capacity and per_task are at least 1")
        self._kept: list[tuple[str, list[Turn]]] = []
        self._draws = self._added = 0

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Keep the good ones of these; samples of all turns of what is drawn."""
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
        """Trajectories that are kept, those that the last step added, and their tasks."""
        tasks = {task for task, _ in self._kept}
        return {"kept": len(self._kept), "added": self._added, "tasks": len(tasks)}

    def state_dict(self) -> dict[str, Any]:
        """The trajectories, and how often it was drawn from."""
        kept = [[task, list(map(to_json, turns))] for task, turns in self._kept]
        return {"kept": kept, "draws": self._draws}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the state belongs to another method."""
        if set(state) != {"kept", "draws"}:
            raise ValueError(f"Experience keeps trajectories, but got {sorted(state)}")
        self._draws = int(state["draws"])
        self._kept = [(t, [from_json(Turn, turn) for turn in turns]) for t, turns in state["kept"]]
