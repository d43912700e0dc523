"""The specification of the agents of a role: role, policy and sampling limits."""

from collections.abc import Mapping
from dataclasses import dataclass

from selfplay.config.schedule import Schedule
from selfplay.engines import Engine
from selfplay.errors import ConfigError, nearest
from selfplay.models.renderer import Renderer
from selfplay.role import Role
from selfplay.rollout.sampling_settings import SamplingSettings


@dataclass(frozen=True, kw_only=True)
class AgentSpec(SamplingSettings):
    """Role, policy and sampling limits of the agents of a role.

    `PolicyPool.agent_spec` makes it; `Rollout` and the studies read it.
    """

    role: Role
    """The role, which makes the prompts and parses the actions."""
    policy: str
    """Name of the policy."""
    renderer: Renderer
    """The renderer between messages and the policy's tokens."""

    def engine_in(self, engines: Mapping[str, Engine]) -> Engine:
        """Return the engine of the policy. Raises ConfigError if there is none."""
        engine = engines.get(self.policy)
        if engine is None:
            raise ConfigError(
                f"engines: none serves policy {self.policy!r}; {nearest(self.policy, engines)}"
            )
        return engine


def scheduled_limits(
    agent_specs: Mapping[str, AgentSpec], schedules: Mapping[str, Schedule], *, step: int
) -> dict[str, float]:
    """Return the values at a training step of all limits that have a schedule.

    `Experiment.limits` passes them on to the metrics `limit/...`.

    Args:
        agent_specs: Role name to the specification of its agents.
        schedules: Schedules of a rollout's own limits, by name.
        step: Training step.
    Returns:
        `<role>/<limit>` and `<limit>` to its value.
    """
    limits = {name: schedule.at(step) for name, schedule in schedules.items()}
    for role, agent_spec in agent_specs.items():
        now = agent_spec.at(step)
        limits |= {f"{role}/{name}": float(getattr(now, name)) for name in agent_spec.schedules}
    return limits
