"""The population: the policies, the roles that they play, and the steps at which they learn."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

from selfplay.config.instantiate import call, check_arguments
from selfplay.errors import ConfigError, nearest

SHARED = "base"
"""Name of the policy that all roles share."""

CHAT = ("chat_template_kwargs", "keep_thinking")
"""Settings of a policy's chat template."""

SETTINGS = ("model", "learn", "dtype", "device", "lora", *CHAT)
"""Settings of a policy."""

LEARNER = "learner"
"""Additional setting in `overrides`: learner settings of one policy."""

CHECKPOINT = ("model", "dtype", "device", *CHAT)
"""Settings of an opponent that is a saved model."""


@runtime_checkable
class SteppingEngine(Protocol):
    """The method by which an engine is recognised; `selfplay.engines.Engine` has it."""

    def step(self) -> Sequence[Any]:
        """Advance all requests, and return the completions that ended."""
        ...


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of training in which only some policies learn."""

    learn: Sequence[str]
    """Names of the policies that learn."""
    steps: int
    """Length of the phase, in steps."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps is at least 1, not {self.steps}")
        if not self.learn:
            raise ValueError("learn names no policy")


@dataclass(frozen=True, kw_only=True)
class Population:
    """Assignment of policies to roles: one shared policy, one per role, or a table.

    The config group `population` makes it. The runtime loads its policies; the training loop asks
    it which policies learn at a step.
    """

    policy: Mapping[str, Any]
    """Settings of every policy (model, learn, dtype, device, lora, chat_template_kwargs,
    keep_thinking) that `overrides` does not replace."""
    sharing: Literal["shared", "separate"] = "shared"
    """shared: one policy for all roles. separate: one policy per role, which is an adapter over one
    base if `policy` has lora."""
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Policy name to settings that replace those of `policy` (another model, learn: false), and to
    a `learner` whose settings replace those of the run."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Role to policy name, or to the name of an opponent, if it differs from `sharing`."""
    extra_policies: Sequence[str] = ()
    """Policies that no role has, such as a league's exploiters."""
    opponents: Mapping[str, Any] = field(default_factory=dict)
    """Name to a player that does not learn: an engine (a script, an endpoint), or the settings of a
    saved model: {model: FOLDER}.

    A league, an evaluation or `roles` assigns them to agents.
    """
    phases: Sequence[Mapping[str, Any]] = ()
    """Phases of training, repeated in this order: {learn: [solver], steps: 10}. Without phases, all
    policies learn at every step."""

    @cached_property
    def plan(self) -> tuple[Phase, ...]:
        """The phases. Raises ConfigError for an impossible one."""
        keys = [f"population.phases.{number}" for number in range(len(self.phases))]
        return tuple(
            call(Phase, check_arguments(Phase, node, where=where), where=where)
            for where, node in zip(keys, self.phases, strict=True)
        )

    def policy_of(self, role: str) -> str:
        """Return the name of the policy of a role."""
        return self.roles.get(role, SHARED if self.sharing == "shared" else role)

    def policies(self, roles: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return name to settings of every policy that the roles need.

        Raises ConfigError for unknown names, if no policy learns, or if the phases contradict
        `learn`.
        """
        known = list(roles)
        played = [*(self.policy_of(role) for role in known), *self.extra_policies]
        names = [name for name in dict.fromkeys(played) if name not in self.opponents]
        self._refuse_opponents(known)
        for role in self.roles:
            if role not in known:
                raise ConfigError(f"population.roles: no role {role!r}; {nearest(role, known)}")
        for name in self.overrides:
            if name not in names:
                raise ConfigError(
                    f"population.overrides: no policy {name!r}; {nearest(name, names)}"
                )
        _refuse_unknown(self.policy, SETTINGS, where="population.policy")
        for name, settings in self.overrides.items():
            _refuse_unknown(settings, (*SETTINGS, LEARNER), where=f"population.overrides.{name}")
            if not isinstance(settings.get(LEARNER, {}), Mapping):
                raise ConfigError(
                    f"population.overrides.{name}.learner: {settings[LEARNER]!r} does not fit: it "
                    "holds learner settings by name, such as {lr: 1e-5}"
                )
        policies = {name: {**self.policy, **self.overrides.get(name, {})} for name in names}
        for settings in policies.values():
            settings.pop(LEARNER, None)
        self._refuse_idle({name: node.get("learn", True) for name, node in policies.items()})
        return policies

    def checkpoints(self) -> dict[str, dict[str, Any]]:
        """Return name to settings of every opponent that is a saved model."""
        return {name: dict(node) for name, node in self.opponents.items() if _is_settings(node)}

    def learner_of(self, name: str) -> Mapping[str, Any]:
        """Return the settings that replace the run's learner settings for one policy."""
        given: Mapping[str, Any] = self.overrides.get(name, {}).get(LEARNER, {})
        return given

    def learns(self, name: str, step: int) -> bool:
        """Return True if the phases let a policy learn at a step; the first step is 1."""
        left = (step - 1) % sum(phase.steps for phase in self.plan) if self.plan else 0
        for phase in self.plan:
            if left < phase.steps:
                return name in phase.learn
            left -= phase.steps
        return True

    def _refuse_opponents(self, roles: Sequence[str]) -> None:
        """Raise ConfigError for an opponent that cannot play, or that has the name of a policy."""
        for name, opponent in self.opponents.items():
            where = f"population.opponents.{name}"
            if name in (SHARED, *roles, *self.extra_policies):
                raise ConfigError(f"{where}: {name!r} names a policy or role; choose another name")
            if not name.replace("_", "").replace("-", "").isalnum():
                raise ConfigError(f"{where}: a name has letters, digits, '-' and '_' only")
            if _is_settings(opponent):
                _refuse_unknown(opponent, CHECKPOINT, where=where)
                if not opponent.get("model"):
                    raise ConfigError(
                        f"{where}: names neither an engine (_target_) nor a saved model (model)"
                    )
            elif not isinstance(opponent, SteppingEngine):
                raise ConfigError(
                    f"{where}: {opponent!r} cannot play; give it a model, or a _target_ that is an "
                    "engine, such as selfplay.engines.scripted.Scripted"
                )

    def _refuse_idle(self, learn: Mapping[str, bool]) -> None:
        """Raise ConfigError unless a policy learns, and the phases name exactly the policies that
        learn."""
        if not any(learn.values()):
            raise ConfigError("population: no policy learns; set learn=true for at least one")
        for number, phase in enumerate(self.plan):
            where = f"population.phases.{number}.learn"
            for name in phase.learn:
                if name not in learn:
                    raise ConfigError(f"{where}: no policy {name!r}; {nearest(name, learn)}")
                if not learn[name]:
                    raise ConfigError(
                        f"{where}: policy {name!r} is frozen (learn: false), so that no phase can "
                        "let it learn; set learn: true, or take it out of the phase"
                    )
        for name, learning in learn.items():
            if learning and self.plan and not any(name in phase.learn for phase in self.plan):
                raise ConfigError(
                    f"population.phases: policy {name!r} learns in none of them; add it to one, or "
                    f"freeze it with population.overrides.{name}.learn=false"
                )
        for name, settings in self.overrides.items():
            if settings.get(LEARNER) and not learn[name]:
                raise ConfigError(
                    f"population.overrides.{name}.learner: policy {name!r} is frozen (learn: "
                    "false), so these settings have no effect; set learn: true, or "
                    "drop them"
                )


def _is_settings(opponent: Any) -> bool:
    return isinstance(opponent, Mapping)


def _refuse_unknown(settings: Mapping[str, Any], known: Sequence[str], *, where: str) -> None:
    for key in settings:
        if key not in known:
            raise ConfigError(f"{where}.{key}: unknown key; {nearest(key, known)}")
