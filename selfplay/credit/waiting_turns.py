"""Turns whose reward is known in a later step, each with a first measurement."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from selfplay.types import Turn, from_json, to_json

Learns: TypeAlias = Callable[[str, int], bool]
"""Function of a policy's name and a training step: True if the policy learns in this step."""


class WaitingTurns:
    """Turns by the id of the task that they created, until the task is played again or they
    expire.

    Turns whose task was played again while their policy did not learn (`population.phases`) wait
    with their change until the first step in which it learns.
    """

    def __init__(self, *, delay: int, patience: int, learns: Learns | None = None) -> None:
        """Args:
        delay: Least number of steps until the task is played again.
        patience: Largest number of these steps.
        learns: Function, True if a policy learns in a step; None: all learn in every step.
        """
        if not 1 <= delay <= patience:
            raise ValueError(f"1 <= delay <= patience, not delay {delay} and patience {patience}")
        self.delay, self.patience, self.learns, self.step = delay, patience, learns, 0
        self.kept: dict[str, tuple[int, float, tuple[Turn, ...]]] = {}
        """Step, first measurement and turns, by the id of the task."""
        self.measured: list[tuple[float, Turn]] = []
        """Turns whose policy has not learned since the second measurement, with the change."""

    def __len__(self) -> int:
        return len(self.measured) + sum(len(turns) for _, _, turns in self.kept.values())

    def keep(self, task: str, value: float, turns: Sequence[Turn]) -> None:
        """Keep the turns of an episode of the present step, unless turns of the same task wait."""
        self.kept.setdefault(task, (self.step, value, tuple(turns)))

    def take(self, measured: Mapping[str, float]) -> list[tuple[float, Turn]]:
        """Return the turns with a known change whose policy learns in the present step, each with
        its change, and no longer keep them."""
        due = [t for t, k in self.kept.items() if t in measured and self.step - k[0] >= self.delay]
        for task in due:
            _, first, turns = self.kept.pop(task)
            self.measured += [(measured[task] - first, turn) for turn in turns]
        known, self.measured = self.measured, []
        taken: list[tuple[float, Turn]] = []
        for change, turn in known:
            now = self.learns is None or self.learns(turn.policy, self.step)
            (taken if now else self.measured).append((change, turn))
        return taken

    def drop(self) -> int:
        """Drop the turns whose task was not played again in time, and return their number."""
        late = [t for t, kept in self.kept.items() if self.step - kept[0] >= self.patience]
        return sum(len(self.kept.pop(task)[2]) for task in late)

    def state_dict(self) -> dict[str, Any]:
        """Return the turns and the present step."""
        kept = {
            task: [step, first, [to_json(turn) for turn in turns]]
            for task, (step, first, turns) in self.kept.items()
        }
        measured = [[change, to_json(turn)] for change, turn in self.measured]
        return {"kept": kept, "measured": measured, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises ValueError for any other state."""
        if set(state) | {"measured"} != {"kept", "measured", "step"}:  # older runs lack "measured"
            raise ValueError(f"LearningProgress keeps turns, but got {sorted(state)}")
        self.step = int(state["step"])
        self.kept = {
            task: (int(step), float(first), tuple(from_json(Turn, turn) for turn in turns))
            for task, (step, first, turns) in state["kept"].items()
        }
        self.measured = [
            (float(change), from_json(Turn, turn)) for change, turn in state.get("measured", ())
        ]
