"""The settings of rollouts: numbers of turns, of episodes in memory and of threads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from selfplay.errors import SettingError
from selfplay.rollout.schedule import ScheduledSettings

MOST_THREADS = 1024
"""Maximum number of arenas that advance, or of tools that run, at the same time."""

LEAST: Mapping[str, int] = {
    "max_turns": 1,
    "max_live": 1,
    "max_waiting": 0,
    "threads": 1,
    "tool_threads": 1,
    "patience": 1,
}
"""Smallest value of each whole number."""


@dataclass(frozen=True, kw_only=True)
class RolloutSettings(ScheduledSettings):
    """Limits of a `Rollout`. The config key `rollout` makes them."""

    SCHEDULED: ClassVar[tuple[str, ...]] = ("max_turns",)
    WHOLE: ClassVar[tuple[str, ...]] = ("max_turns",)

    max_turns: int = 1000
    """Number of turns after which an episode is truncated."""
    max_live: int = 4096
    """Maximum number of episodes that are sampled or advance at once."""
    max_waiting: int = 4096
    """Number of further episodes that may begin while episodes wait for tools. 0: an episode that
    waits for a tool still counts towards `max_live`."""
    threads: int = 32
    """Number of arenas that advance at once if `Arena.blocking`."""
    overlap: float = 0.25
    """Fraction, 0 to 1, for episodes whose arenas still advance while engines sample: at most this
    fraction of all live episodes, and at most the larger of `threads` and this fraction of the
    episodes that engines have begun to sample. 0: the engines wait for all of them."""
    tool_threads: int = 64
    """Number of tool calls that run at once."""
    patience: int = 100_000
    """Number of consecutive engine steps without a completion after which the rollout raises
    StalledError. Steps in which an endpoint's answer is awaited do not count: its engine has a time
    limit of its own."""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise SettingError(
                    f"{name}: {getattr(self, name)} does not fit: at least {least} is needed"
                )
        for name, schedule in self.schedules.items():
            if min(schedule.values) < LEAST[name]:
                raise SettingError(
                    f"{name}.values: {list(schedule.values)} do not fit: at least {LEAST[name]} is "
                    "needed"
                )
        if not 0 <= self.overlap <= 1:
            raise SettingError(f"overlap: {self.overlap} does not fit: between 0 and 1 is needed")
        for name in ("threads", "tool_threads"):
            if getattr(self, name) > MOST_THREADS:
                raise SettingError(
                    f"{name}: {getattr(self, name)} does not fit: {MOST_THREADS} is the maximum"
                )
