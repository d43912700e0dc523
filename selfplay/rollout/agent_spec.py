"""The specification of the agents of a role: role, policy and sampling limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from selfplay.models.renderer import Renderer
from selfplay.role import Role
from selfplay.rollout.schedule import Schedule, number_at, steps_of

COOLEST, HOTTEST = 1e-6, 1e6
"""Smallest and largest temperature above 0 by which float32 logits can be divided."""
MOST_STOPS = 16
"""Maximum number of stop strings of a role."""
WHOLE = ("max_tokens", "top_k")
"""Limits that are whole numbers."""
SCHEDULED = (*WHOLE, "temperature", "top_p", "min_p")
"""Limits that may change with the training step."""


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """Role, policy and sampling limits of the agents of a role."""

    role: Role
    """Makes prompts and parses actions."""
    policy: str
    """Name of the policy."""
    renderer: Renderer
    """Converts between messages and the policy's tokens."""
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
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    """Schedules of the limits that change with the training step, by name. The limits themselves
    are those of episodes outside of training."""

    def __post_init__(self) -> None:
        check_sampling_limits(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self.stop,
        )

    def at(self, step: int | None) -> "AgentSpec":
        """Return the specification with the limits of a training step, without schedules."""
        if not self.schedules:
            return self
        limits = {
            name: number_at(schedule, step, whole=name in WHOLE)
            for name, schedule in self.schedules.items()
        }
        return replace(self, **limits, schedules={})  # type: ignore[arg-type]

    def settings_in_training(self) -> list["AgentSpec"]:
        """Return the specification at each step at which a schedule has a configured value; the
        specification itself if it has no schedule."""
        return [self.at(step) for step in steps_of(self.schedules.values())] or [self]


def scheduled_limits(
    seats: Mapping[str, AgentSpec], schedules: Mapping[str, Schedule], *, step: int
) -> dict[str, float]:
    """Return the limits that change with the training step, at a step, for the metrics.

    Args:
        seats: Role name to the specification of its agents.
        schedules: Schedules of a rollout's own limits, by name.
        step: Training step.
    Returns:
        `<role>/<limit>` and `<limit>` to its value.
    """
    limits = {name: schedule.at(step) for name, schedule in schedules.items()}
    for role, seat in seats.items():
        now = seat.at(step)
        limits |= {f"{role}/{name}": float(getattr(now, name)) for name in seat.schedules}
    return limits


def check_sampling_limits(
    *,
    max_tokens: int = 1,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    stop: Sequence[str] = (),
) -> None:
    """Raise ValueError for limits that sampling cannot use. The limits are those of `AgentSpec`.

    Float32 logits overflow at temperatures between 0 and `COOLEST`.
    """
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p: {top_p} does not fit: above 0 and at most 1 is needed")
    if top_k < 0:
        raise ValueError(f"top_k: {top_k} does not fit: at least 0 is needed; 0 keeps all tokens")
    if not 0 <= min_p <= 1:
        raise ValueError(f"min_p: {min_p} does not fit: between 0 and 1 is needed")
    if len(stop) > MOST_STOPS:
        raise ValueError(f"stop: {len(stop)} strings do not fit: {MOST_STOPS} is the maximum")
    if "" in stop:
        raise ValueError("stop: an empty string does not fit: it would end every completion")
    if max_tokens < 1:
        raise ValueError(f"max_tokens: {max_tokens} does not fit: at least 1 is needed")
    if temperature != 0 and not COOLEST <= temperature <= HOTTEST:
        raise ValueError(
            f"temperature: {temperature} does not fit: 0 is greedy, and others lie between "
            f"{COOLEST:g} and {HOTTEST:g}"
        )
