"""A number that changes with the training step."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A number that changes with the training step.

    Before the first of `steps` it has the first value, and after the last one the last value.
    Curricula of interaction lengths (ScalingInter-RL, 2509.08755) and of completion lengths use
    `between: constant`.
    """

    steps: tuple[int, ...]
    """Training steps at which the number has the `values`, ascending."""
    values: tuple[float, ...]
    """Value at each of `steps`."""
    between: Literal["linear", "constant"] = "linear"
    """Value between two steps: on the line between both values, or the earlier value."""

    def __post_init__(self) -> None:
        if not self.steps or len(self.steps) != len(self.values):
            raise ValueError(
                f"a schedule needs as many steps as values, and at least one; it has "
                f"{len(self.steps)} and {len(self.values)}"
            )
        if any(
            later <= earlier for earlier, later in zip(self.steps, self.steps[1:], strict=False)
        ):
            raise ValueError(f"the steps of a schedule ascend, and {list(self.steps)} do not")

    def at(self, step: int | None) -> float:
        """Return the value at a training step; None: the last value."""
        if step is None or step >= self.steps[-1]:
            return self.values[-1]
        if step <= self.steps[0]:
            return self.values[0]
        after = next(place for place, at in enumerate(self.steps) if at > step)
        before = after - 1
        if self.between == "constant":
            return self.values[before]
        way = (step - self.steps[before]) / (self.steps[after] - self.steps[before])
        # This form is exact between equal values.
        return self.values[before] + way * (self.values[after] - self.values[before])


def value_at(number: float | Schedule, step: int) -> float:
    """Return the value of a number at a training step."""
    return number.at(step) if isinstance(number, Schedule) else number


def values_of(number: float | Schedule) -> tuple[float, ...]:
    """Return the configured values of a number; at each step it is one of them or between two."""
    return number.values if isinstance(number, Schedule) else (number,)


def is_schedule(node: Any) -> bool:
    """Return True if a value of a config is the mapping of a schedule."""
    known = {each.name for each in fields(Schedule)}
    return isinstance(node, Mapping) and {"steps", "values"} <= node.keys() <= known
