"""The policies that can play, by name, and the rollouts that use them."""

from collections.abc import Callable, Mapping
from typing import Any

from selfplay.arena import Arena
from selfplay.engines import Engine
from selfplay.models.renderer import ByteRenderer, Renderer
from selfplay.role import Role
from selfplay.rollout.agent_spec import AgentSpec
from selfplay.rollout.rollout import Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.rollout.sampling_settings import SamplingSettings


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
        sampling: Mapping[str, SamplingSettings],
        rollout: RolloutSettings,
    ) -> None:
        """Args:
        roles: Roles by name.
        policy_of: Maps a role to the policy that plays it by default.
        sampling: Sampling limits by role.
        rollout: Settings of the rollouts.
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
            renderer: Converts between messages and its tokens. By default the engine's own, or
                bytes if the engine has none.
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

    def rollout(self, arena: Callable[[], Arena], **sampling: Any) -> Rollout:
        """Return a rollout of an arena; `sampling` replaces the sampling limits of the config."""
        return Rollout(
            arena=arena,
            agent_specs={role: self.agent_spec(role, **sampling) for role in arena().roles},
            engines=self.engines,
            renderers=self.renderers,
            learning=self.learning,
            settings=self.settings,
        )

    def agent_spec(self, role: str, **sampling: Any) -> AgentSpec:
        """Return the specification of the agents of a role, played by the role's own policy."""
        policy = self.policy_of(role)
        settings = self.sampling[role].changed(**sampling)
        return AgentSpec(
            role=self.roles[role],
            policy=policy,
            renderer=self.renderers[policy],
            **vars(settings),
        )
