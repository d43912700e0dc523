"""Seating: everyone that an agent can be played by, and rollouts of which they are part."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from selfplay.arena import Arena
from selfplay.config.instantiate import check_arguments
from selfplay.engines import Engine
from selfplay.errors import ConfigError, nearest
from selfplay.models.renderer import ByteRenderer, Renderer
from selfplay.role import Role
from selfplay.rollout.rollout import MOST_THREADS, AgentSpec, Rollout, check_sampling_limits

# What the program fills in, and a config therefore may not.
ROLLOUT = ("arena", "seats", "engines", "renderers", "learning")
SEAT = ("role", "policy", "renderer")


def validate(
    *, sampling: Mapping[str, Any], rollout: Mapping[str, Any], roles: Mapping[str, Any]
) -> None:
    """Raise ConfigError for the first setting that no seat or rollout could have."""
    fitted = check_arguments(Rollout, rollout, where="rollout", reserved=ROLLOUT)
    if fitted.get("threads", 1) > MOST_THREADS:
        raise ConfigError(
            f"rollout.threads: {fitted['threads']} does not fit: {MOST_THREADS} is the maximum"
        )
    if "default" not in sampling:
        raise ConfigError("sampling.default: missing; it limits the answers of all other roles")
    known = ("default", *roles)
    for role, node in sampling.items():
        if role not in known:
            raise ConfigError(f"sampling.{role}: no such role; {nearest(role, known)}")
        limits = check_arguments(AgentSpec, node, where=f"sampling.{role}", reserved=SEAT)
        try:
            check_sampling_limits(**limits)
        except ValueError as error:
            raise ConfigError(f"sampling.{role}.{error}") from error


def answers(*, sampling: Mapping[str, Any], roles: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Of each role, where the config limits its answers and to how many tokens."""
    found = {}
    for role in roles:
        name = role if "max_tokens" in sampling.get(role, {}) else "default"
        limits = check_arguments(AgentSpec, sampling[name], where=f"sampling.{name}", reserved=SEAT)
        tokens = limits.get("max_tokens", AgentSpec.max_tokens)
        found[role] = (f"sampling.{name}.max_tokens", tokens)
    return found


def check_known(names: Iterable[str], known: Iterable[str], *, where: str) -> None:
    """Raise ConfigError for the first name of nobody who can be seated."""
    everyone = list(known)
    for name in names:
        if name not in everyone:
            raise ConfigError(f"{where}: nobody is called {name!r}; {nearest(name, everyone)}")


class PolicyPool:
    """The policies by name, with what serves each; its rollouts see who comes and goes."""

    def __init__(
        self,
        *,
        roles: Mapping[str, Role],
        policy_of: Callable[[str], str],
        sampling: Mapping[str, Any],
        rollout: Mapping[str, Any],
    ) -> None:
        """Args:
        roles: By name.
        policy_of: Whose seat it is if a job does not say otherwise: role to policy.
        sampling: Limits by role, as in the config.
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
        """A policy that can be seated from now on.

        Args:
            name: What jobs call it.
            engine: What serves it under that name.
            renderer: Its token seam; the engine's own, or bytes, for one that speaks text.
            learn: Whether its turns are learned from.
        """
        self.engines[name] = engine
        self.renderers[name] = renderer or getattr(engine, "renderer", None) or ByteRenderer()
        if learn:
            self.learning.add(name)

    def remove(self, name: str) -> None:
        """A policy that is not seated any more."""
        del self.engines[name], self.renderers[name]
        self.learning.discard(name)

    def rollout(self, arena: Callable[[], Arena], **limits: Any) -> Rollout:
        """A rollout of an arena, with these limits in place of the config's."""
        settings = check_arguments(Rollout, self.settings, where="rollout", reserved=ROLLOUT)
        return Rollout(
            arena=arena,
            seats={role: self.seat(role, **limits) for role in arena().roles},
            engines=self.engines,
            renderers=self.renderers,
            learning=self.learning,
            **settings,
        )

    def seat(self, role: str, **limits: Any) -> AgentSpec:
        """The seat of a role, on its own policy."""
        policy = self.policy_of(role)
        given = {**self.sampling["default"], **self.sampling.get(role, {}), **limits}
        return AgentSpec(
            role=self.roles[role],
            policy=policy,
            renderer=self.renderers[policy],
            **check_arguments(AgentSpec, given, where=f"sampling.{role}", reserved=SEAT),
        )
