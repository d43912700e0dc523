"""The policies that can play, by name, and the rollouts that use them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from selfplay.arena import Arena
from selfplay.config.instantiate import check_arguments
from selfplay.engines import Engine
from selfplay.errors import ConfigError, nearest
from selfplay.models.renderer import ByteRenderer, Renderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, Rollout

# Arguments that the program provides, so that a config must not set them.
ROLLOUT = ("arena", "seats", "engines", "renderers", "learning")
AGENT_SPEC = ("role", "policy", "renderer")


def check_known(names: Iterable[str], known: Iterable[str], *, where: str) -> None:
    """Raise ConfigError for the first name that is neither a policy nor an opponent."""
    known = list(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: no policy or opponent {name!r}; {nearest(name, known)}")


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
        """
        self.roles, self.policy_of = roles, policy_of
        self.sampling, self.settings = sampling, rollout
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
        settings = check_arguments(Rollout, self.settings, where="rollout", reserved=ROLLOUT)
        return Rollout(
            arena=arena,
            seats={role: self.agent_spec(role, **limits) for role in arena().roles},
            engines=self.engines,
            renderers=self.renderers,
            learning=self.learning,
            **settings,
        )

    def agent_spec(self, role: str, **limits: Any) -> AgentSpec:
        """Return the specification of the agents of a role, played by the role's own policy."""
        policy = self.policy_of(role)
        settings = {**self.sampling["default"], **self.sampling.get(role, {}), **limits}
        return AgentSpec(
            role=self.roles[role],
            policy=policy,
            renderer=self.renderers[policy],
            **check_arguments(AgentSpec, settings, where=f"sampling.{role}", reserved=AGENT_SPEC),
        )
