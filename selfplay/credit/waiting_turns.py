"""Turns whose reward is known in a later step, each with a first measurement."""

from collections.abc import Mapping, Sequence
from typing import Any

from selfplay.types import Turn, from_json, to_json


class WaitingTurns:
    """Turns by the id of the task that they created, until the task is played again or they
    expire."""

    def __init__(self, *, delay: int, patience: int) -> None:
        """`delay` and `patience` are the least and the largest number of steps of a wait."""
        if not 1 <= delay <= patience:
            raise ValueError(f"1 <= delay <= patience, not delay {delay} and patience {patience}")
        self.delay, self.patience, self.step = delay, patience, 0
        self.kept: dict[str, tuple[int, float, tuple[Turn, ...]]] = {}
        """Step, first measurement and turns, by the id of the task."""

    def __len__(self) -> int:
        return sum(len(turns) for _, _, turns in self.kept.values())

    def keep(self, task: str, value: float, turns: Sequence[Turn]) -> None:
        """Keep the turns of an episode of the present step, unless turns of the same task wait."""
        self.kept.setdefault(task, (self.step, value, tuple(turns)))

    def take(self, measured: Mapping[str, float]) -> list[tuple[float, Turn]]:
        """Return the change of each measured task with its turns, and no longer keep them."""
        due = [t for t, k in self.kept.items() if t in measured and self.step - k[0] >= self.delay]
        taken = [(task, *self.kept.pop(task)[1:]) for task in due]
        return [(measured[task] - first, turn) for task, first, turns in taken for turn in turns]

    def drop(self) -> int:
        """Drop the turns that have waited too long, and return their number."""
        late = [t for t, kept in self.kept.items() if self.step - kept[0] >= self.patience]
        return sum(len(self.kept.pop(task)[2]) for task in late)

    def state_dict(self) -> dict[str, Any]:
        """Return the turns and the present step."""
        kept = {
            task: [step, first, [to_json(turn) for turn in turns]]
            for task, (step, first, turns) in self.kept.items()
        }
        return {"kept": kept, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises ValueError for any other state."""
        if set(state) != {"kept", "step"}:
            raise ValueError(f"LearningProgress keeps turns, but got {sorted(state)}")
        self.step = int(state["step"])
        self.kept = {
            task: (int(step), float(first), tuple(from_json(Turn, turn) for turn in turns))
            for task, (step, first, turns) in state["kept"].items()
        }
