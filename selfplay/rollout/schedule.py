"""Numbers that change with the training step: temperature, length of a completion, turns."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from selfplay.config.instantiate import convert, join
from selfplay.errors import ConfigError
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.types import Episode


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
        return (1 - way) * self.values[before] + way * self.values[after]


def split_schedules(
    node: Mapping[str, Any], *, where: str, scheduled: Collection[str], whole: Collection[str]
) -> tuple[dict[str, Any], dict[str, Schedule]]:
    """Return the settings of a config node with the last value of each schedule, and the schedules.

    Args:
        node: Settings; a mapping in place of a number is a schedule.
        where: Key path of the node, for errors.
        scheduled: Names of the settings that may have a schedule.
        whole: Names of those that are whole numbers.
    Raises:
        ConfigError: For a schedule that does not fit, or one of another setting.
    """
    plain, schedules = dict(node), dict[str, Schedule]()
    for name, value in node.items():
        if not isinstance(value, Mapping):
            continue
        path = join(where, name)
        if name not in scheduled:
            known = ", ".join(scheduled)
            raise ConfigError(f"{path}: a schedule does not fit here; those with one are {known}")
        schedule = convert(Schedule, value, where=path)
        if name in whole and any(not float(number).is_integer() for number in schedule.values):
            raise ConfigError(f"{path}.values: {list(schedule.values)} do not fit: whole numbers")
        schedules[name], plain[name] = schedule, number_at(schedule, None, whole=name in whole)
    return plain, schedules


def number_at(schedule: Schedule, step: int | None, *, whole: bool) -> float:
    """Return the value of a schedule at a step, rounded if it is a whole number."""
    value = schedule.at(step)
    return round(value) if whole else value


def steps_of(schedules: Iterable[Schedule]) -> list[int]:
    """Return the steps at which any of the schedules has a configured value, ascending."""
    return sorted({step for schedule in schedules for step in schedule.steps})


def sampled_at(
    rollout_fn: Callable[[Sequence[EpisodeSpec]], list[Episode]], step: int
) -> Callable[[Sequence[EpisodeSpec]], list[Episode]]:
    """Return a rollout function whose episodes have the limits of a training step."""

    def run(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        return rollout_fn([replace(spec, step=step) for spec in specs])

    return run
