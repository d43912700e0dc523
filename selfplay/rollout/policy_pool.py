"""The policies that can play, by name, and the rollouts that use them."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from selfplay.arena import Arena
from selfplay.config.instantiate import check_arguments
from selfplay.engines import Engine
from selfplay.errors import ConfigError, nearest
from selfplay.models.renderer import ByteRenderer, Renderer
from selfplay.role import Role
from selfplay.rollout.agent_spec import SCHEDULED, WHOLE, AgentSpec
from selfplay.rollout.rollout import MOST_THREADS, Rollout
from selfplay.rollout.schedule import split_schedules

# Arguments that the program provides, so that a config must not set them.
ROLLOUT = ("arena", "seats", "engines", "renderers", "learning", "schedules")
AGENT_SPEC = ("role", "policy", "renderer", "schedules")


def check_known(names: Iterable[str], known: Iterable[str], *, where: str) -> None:
    """Raise ConfigError for the first name that is neither a policy nor an opponent."""
    known = list(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: no policy or opponent {name!r}; {nearest(name, known)}")


def agent_spec(
    node: Mapping[str, Any], *, where: str, role: Role, policy: str, renderer: Renderer
) -> AgentSpec:
    """Return the specification of a role's agents with the sampling limits of a config node.

    Raises ConfigError for an unknown key, and for a limit that sampling cannot use at some step.
    """
    plain, schedules = split_schedules(node, where=where, scheduled=SCHEDULED, whole=WHOLE)
    limits = check_arguments(AgentSpec, plain, where=where, reserved=AGENT_SPEC)
    try:
        spec = AgentSpec(role=role, policy=policy, renderer=renderer, schedules=schedules, **limits)
        spec.settings_in_training()  # checks the limits of each step
    except ValueError as error:
        raise ConfigError(f"{where}.{error}") from error
    return spec


def check_sampling(sampling: Mapping[str, Any], roles: Mapping[str, Role]) -> None:
    """Raise ConfigError for an unknown role or an invalid limit in the config node `sampling`."""
    known = ("default", *roles)
    for name, node in sampling.items():
        if name not in known:
            raise ConfigError(f"sampling.{name}: no such role; {nearest(name, known)}")
        role = roles.get(name, Role())
        agent_spec(node, where=f"sampling.{name}", role=role, policy="", renderer=ByteRenderer())


def rollout_settings(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config node `rollout` as arguments of `Rollout`, with schedules."""
    turns = ("max_turns",)
    plain, schedules = split_schedules(node, where="rollout", scheduled=turns, whole=turns)
    for name, schedule in schedules.items():
        if min(schedule.values) < 1:
            raise ConfigError(
                f"rollout.{name}.values: {list(schedule.values)} do not fit: at least 1 is needed"
            )
    settings = check_arguments(Rollout, plain, where="rollout", reserved=ROLLOUT)
    if settings.get("overlap", 0) > 1:
        raise ConfigError(
            f"rollout.overlap: {settings['overlap']} does not fit: between 0 and 1 is needed"
        )
    for name in ("threads", "tool_threads"):
        if settings.get(name, 1) > MOST_THREADS:
            raise ConfigError(
                f"rollout.{name}: {settings[name]} does not fit: {MOST_THREADS} is the maximum"
            )
    return {**settings, "schedules": schedules}


class PolicyPool:
    """The policies by name, each with the engine that serves it and its renderer.

    A `RolloutSetup` makes one. Its rollouts read it, so that they see policies that are added or
    removed later, such as the snapshots of a league.
    """

    def __init__(
        self,
        *,
        roles: Mapping[str, Role],
        policy_of: Callable[[str], str],
        sampling: Mapping[str, Any],
        rollout: Mapping[str, Any],
    ) -> None:
        """Args:
        roles: Roles by name.
        policy_of: Maps a role to the policy that plays it by default.
        sampling: Sampling limits by role, as in the config.
        rollout: Settings of the rollouts, as in the config.

        Raises ConfigError for an invalid setting of `sampling` or `rollout`.
        """
        check_sampling(sampling, roles)
        self.roles, self.policy_of = roles, policy_of
        self.sampling, self.settings = sampling, rollout_settings(rollout)
        self.engines: dict[str, Engine] = {}
        self.renderers: dict[str, Renderer] = {}
        self.learning: set[str] = set()

    def add(
        self, name: str, engine: Engine, renderer: Renderer | None = None, *, learn: bool = False
    ) -> None:
        """Add a policy.

        Args:
            name: Name of the policy in a `policy_map`.
            engine: Engine that serves it under that name.
            renderer: Its token seam. By default the engine's own, or bytes if the engine has none.
            learn: True if the policy learns from its turns.
        """
        self.engines[name] = engine
        self.renderers[name] = renderer or engine.renderer or ByteRenderer()
        if learn:
            self.learning.add(name)

    def remove(self, name: str) -> None:
        """Remove a policy."""
        del self.engines[name], self.renderers[name]
        self.learning.discard(name)

    def rollout(self, arena: Callable[[], Arena], **limits: Any) -> Rollout:
        """Return a rollout of an arena; `limits` replace the sampling limits of the config."""
        return Rollout(
            arena=arena,
            seats={role: self.agent_spec(role, **limits) for role in arena().roles},
            engines=self.engines,
            renderers=self.renderers,
            learning=self.learning,
            **self.settings,
        )

    def agent_spec(self, role: str, **limits: Any) -> AgentSpec:
        """Return the specification of the agents of a role, played by the role's own policy."""
        return self._spec(role, self.renderers[self.policy_of(role)], limits)

    def limits(self, role: str) -> AgentSpec:
        """Return the sampling limits of a role; its policy need not be in the pool yet."""
        return self._spec(role, ByteRenderer())

    def _spec(
        self, role: str, renderer: Renderer, limits: Mapping[str, Any] = MappingProxyType({})
    ) -> AgentSpec:
        return agent_spec(
            {**self.sampling.get("default", {}), **self.sampling.get(role, {}), **limits},
            where=f"sampling.{role}",
            role=self.roles[role],
            policy=self.policy_of(role),
            renderer=renderer,
        )
