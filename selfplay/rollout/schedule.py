"""Numbers that change with the training step: temperature, length of a completion, turns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

from selfplay.config.instantiate import call, check_arguments, convert, join
from selfplay.config.schedule import Schedule
from selfplay.errors import ConfigError
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.types import Episode


@dataclass(frozen=True, kw_only=True)
class ScheduledSettings:
    """Base of settings of which some may change with the training step.

    `make_scheduled` makes them; the settings of sampling and of rollouts derive from it.
    """

    SCHEDULED: ClassVar[tuple[str, ...]] = ()
    """Names of the settings that may have a schedule."""
    WHOLE: ClassVar[tuple[str, ...]] = ()
    """Names of the scheduled settings that are whole numbers."""

    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    """Schedules of the settings that change with the training step, by name. The field of such a
    setting holds its value for episodes outside of training."""

    def changed(self, *, schedules: Mapping[str, Schedule] | None = None, **values: Any) -> Self:
        """Return the settings with other values; each has a schedule only if `schedules` has it."""
        kept = {name: each for name, each in self.schedules.items() if name not in values}
        return replace(self, **values, schedules={**kept, **(schedules or {})})

    def at(self, step: int | None) -> Self:
        """Return the settings of a training step, without schedules."""
        if not self.schedules:
            return self
        now = {
            name: number_at(schedule, step, whole=name in self.WHOLE)
            for name, schedule in self.schedules.items()
        }
        return replace(self, **now, schedules={})

    def settings_in_training(self) -> list[Self]:
        """Return the settings at each step at which a schedule has a configured value; the settings
        themselves if there is no schedule."""
        return [self.at(step) for step in steps_of(self.schedules.values())] or [self]


S = TypeVar("S", bound=ScheduledSettings)


def make_scheduled(
    target: type[S], node: Mapping[str, Any], *, where: str, base: S | None = None
) -> S:
    """Return the settings of a config node, in which a mapping in place of a number is a schedule.

    Args:
        target: Class of the settings.
        node: Settings by name.
        where: Key path of the node, for errors.
        base: Settings that those of the node replace; None: the defaults.
    Raises:
        ConfigError: For an unknown setting, one that does not fit at some step, or a schedule of
            another setting.
    """
    values, schedules = dict(node), dict[str, Schedule]()
    for name, value in node.items():
        if not isinstance(value, Mapping):
            continue
        path = join(where, name)
        if name not in target.SCHEDULED:
            known = ", ".join(target.SCHEDULED)
            raise ConfigError(f"{path}: this setting takes no schedule; these do: {known}")
        schedules[name] = schedule = convert(Schedule, value, where=path)
        whole = name in target.WHOLE
        if whole and any(not float(number).is_integer() for number in schedule.values):
            raise ConfigError(f"{path}.values: {list(schedule.values)} are not all whole numbers")
        values[name] = number_at(schedule, None, whole=whole)
    values = check_arguments(target, values, where=where, reserved=("schedules",))
    made: S = call((base or target()).changed, {**values, "schedules": schedules}, where=where)
    return made


def number_at(schedule: Schedule, step: int | None, *, whole: bool) -> float:
    """Return the value of a schedule at a training step, rounded if `whole`.

    None as the step means outside of training: the last value.
    """
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
