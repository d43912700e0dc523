"""The settings of sampling: limits of the completions of a role."""

from dataclasses import dataclass
from typing import ClassVar

from selfplay.errors import SettingError
from selfplay.rollout.schedule import ScheduledSettings

COOLEST, HOTTEST = 1e-6, 1e6
"""Smallest and largest temperature above 0 by which float32 logits can be divided."""
MOST_STOPS = 16
"""Maximum number of stop strings of a role."""


@dataclass(frozen=True, kw_only=True)
class SamplingSettings(ScheduledSettings):
    """Sampling limits of the agents of a role. The config key `sampling` makes them."""

    SCHEDULED: ClassVar[tuple[str, ...]] = ("max_tokens", "top_k", "temperature", "top_p", "min_p")
    WHOLE: ClassVar[tuple[str, ...]] = ("max_tokens", "top_k")

    max_tokens: int = 256
    """Maximum length of a completion in tokens."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    """Total probability of the most probable tokens that may be sampled; 1: all tokens."""
    top_k: int = 0
    """Number of the most probable tokens that may be sampled; 0: all tokens."""
    min_p: float = 0.0
    """Smallest probability of a token that may be sampled, as a fraction of the largest one."""
    stop: tuple[str, ...] = ()
    """Texts at which a completion ends. The role reads the text before the stop string; token ids
    and loss include it."""
    keep_stop: bool = False
    """True if the role reads the stop string too, such as a closing tag."""

    def __post_init__(self) -> None:
        """Raise SettingError for limits that sampling cannot use, at any step.

        Float32 logits overflow at temperatures between 0 and `COOLEST`.
        """
        if not 0 < self.top_p <= 1:
            raise SettingError(f"top_p: {self.top_p} does not fit: above 0 and at most 1 is needed")
        if self.top_k < 0:
            raise SettingError(
                f"top_k: {self.top_k} does not fit: at least 0 is needed; 0 keeps all tokens"
            )
        if not 0 <= self.min_p <= 1:
            raise SettingError(f"min_p: {self.min_p} does not fit: between 0 and 1 is needed")
        if len(self.stop) > MOST_STOPS:
            raise SettingError(
                f"stop: {len(self.stop)} strings do not fit: {MOST_STOPS} is the maximum"
            )
        if "" in self.stop:
            raise SettingError("stop: an empty string does not fit: it would end every completion")
        if self.max_tokens < 1:
            raise SettingError(f"max_tokens: {self.max_tokens} does not fit: at least 1 is needed")
        if self.temperature != 0 and not COOLEST <= self.temperature <= HOTTEST:
            raise SettingError(
                f"temperature: {self.temperature} does not fit: 0 is greedy, and others lie "
                f"between {COOLEST:g} and {HOTTEST:g}"
            )
        if self.schedules:
            self.settings_in_training()  # makes, and so checks, the limits of each step

    def longest(self) -> int:
        """Return the largest number of tokens of a completion in training."""
        return max(each.max_tokens for each in self.settings_in_training())
