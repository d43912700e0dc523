"""The population: the policies, the roles that they play, and the steps at which they learn."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from selfplay.config.instantiate import build, make, signature
from selfplay.errors import ConfigError, nearest
from selfplay.models.policy_settings import PolicySettings
from selfplay.models.warmstart_settings import WarmStartSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARED = "base"
"""Name of the policy that all roles share."""

LEARNER = "learner"
"""Additional setting in `overrides`: learner settings of one policy."""


@runtime_checkable
class SteppingEngine(Protocol):
    """The method by which an engine is recognised; `selfplay.engines.Engine` has it."""

    def step(self) -> Sequence[Any]:
        """Advance all requests, and return the completions that ended."""
        ...


@runtime_checkable
class ChoosyEngine(Protocol):
    """An engine that does not serve every model; `selfplay.engines.transformers` has one."""

    def refusal(self, model: "PreTrainedModel") -> str:
        """Return the reason why it serves no model with these modules; empty if there is none."""
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


def learns(phases: Sequence[Phase], name: str, step: int) -> bool:
    """Return True if the phases let a policy learn at a step; the first step is 1."""
    left = (step - 1) % sum(phase.steps for phase in phases) if phases else 0
    for phase in phases:
        if left < phase.steps:
            return name in phase.learn
        left -= phase.steps
    return True


@dataclass(frozen=True, kw_only=True)
class Population:
    """Assignment of policies to roles: one shared policy, one per role, or a table.

    The config group `population` makes it. The runtime loads its policies; the training loop asks
    it which policies learn at a step.
    """

    policy: PolicySettings
    """Settings of every policy that `overrides` does not replace."""
    role_names: Sequence[str]
    """Names of all roles; the program provides them."""
    warmstart: WarmStartSettings
    """Makes the models of policies without one, or fine-tunes them; the program provides it."""
    sharing: Literal["shared", "separate"] = "shared"
    """shared: one policy for all roles. separate: one policy per role, which is an adapter over one
    base if `policy` has lora."""
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Policy name to settings that replace those of `policy` (another model, learn: false), and to
    a `learner` whose settings replace those of the run."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Role to policy name, or to the name of an opponent, if it differs from `sharing`."""
    extra_policies: Sequence[str] = ()
    """Names of further policies, which play no role by default, such as a league's exploiters."""
    opponents: Mapping[str, Any] = field(default_factory=dict)
    """Opponents, which do not learn, by name: an engine (a script, an endpoint), or the settings of
    a saved model: {model: FOLDER}.

    A league, an evaluation or `roles` assigns them to agents.
    """
    phases: Sequence[Phase] = ()
    """Phases of training, repeated in this order: {learn: [solver], steps: 10}. Without phases, all
    policies learn at every step."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Population":
        """Build the population of a run's config, without its services."""
        provided = {
            "role_names": tuple(config["roles"]),
            "warmstart": WarmStartSettings(config=config["warmstart"]),
        }
        made: Population = build(config["population"], where="population", provided=provided)
        return made

    def __post_init__(self) -> None:
        """Raise ConfigError for unknown names, settings that do not fit, policies that have no
        model or never learn, and phases that contradict `learn`."""
        self._check_opponents()
        for name in self._names:  # the names of folders in a checkpoint
            _check_name(name, where=f"population: policy {name!r}")
        for role in self.roles:
            if role not in self.role_names:
                raise ConfigError(
                    f"population.roles: no role {role!r}; {nearest(role, self.role_names)}"
                )
        for name, own in self.overrides.items():
            if name not in self._names:
                raise ConfigError(
                    f"population.overrides: no policy {name!r}; {nearest(name, self._names)}"
                )
            known = (*signature(PolicySettings).known, LEARNER)
            for key in own:
                if key not in known:
                    where = f"population.overrides.{name}"
                    raise ConfigError(
                        f"{where}.{key}: unknown key (a setting of the learner would be "
                        f"{where}.{LEARNER}.{key}); {nearest(key, known)}"
                    )
            if not isinstance(own.get(LEARNER, {}), Mapping):
                raise ConfigError(
                    f"population.overrides.{name}.learner: {own[LEARNER]!r} does not fit: it "
                    "holds learner settings by name, such as {lr: 1e-5}"
                )
        for name, settings in self.policies.items():
            self._check_model(settings, where=self.where(name))
        self._check_learning()

    def close(self) -> None:
        """Close the engines of the opponents in reverse order.

        If one of them raises an error, the others are closed before the error is raised.
        """
        with ExitStack() as opened:
            for name, opponent in self.opponents.items():
                if name not in self.saved_models:
                    opened.callback(opponent.close)

    def policy_of(self, role: str) -> str:
        """Return the name of the policy of a role."""
        return self.roles.get(role, SHARED if self.sharing == "shared" else role)

    @cached_property
    def _names(self) -> list[str]:
        """Names of the policies, in the order of their roles."""
        played = [*map(self.policy_of, self.role_names), *self.extra_policies]
        return [name for name in dict.fromkeys(played) if name not in self.opponents]

    @cached_property
    def policies(self) -> Mapping[str, PolicySettings]:
        """Settings of every policy that the roles need, by name."""
        made = {}
        for name in self._names:
            own = {k: v for k, v in self.overrides.get(name, {}).items() if k != LEARNER}
            if "model" in own:  # another model has a template of its own
                own.setdefault("chat_template", None)
            settings = make(PolicySettings, own, where=self.where(name), base=self.policy)
            made[name] = self._with_own_teachers(name, settings)
        return made

    def _with_own_teachers(self, name: str, settings: PolicySettings) -> PolicySettings:
        """Return the settings of a policy with the teachers of the roles that it plays.

        A policy without a role, such as an exploiter, may play any of them. Raises ConfigError for
        an unknown role.
        """
        if not isinstance(settings.teacher, Mapping):
            return settings
        for role in settings.teacher:
            if role not in self.role_names:
                hint = nearest(role, self.role_names)
                raise ConfigError(f"{self.where(name)}.teacher: no role {role!r}; {hint}")
        roles = [role for role in self.role_names if self.policy_of(role) == name]
        kept = {r: model for r, model in settings.teacher.items() if r in roles or not roles}
        return replace(settings, teacher=kept)

    @property
    def learning(self) -> list[str]:
        """Names of the policies that learn."""
        return [name for name, settings in self.policies.items() if settings.learn]

    @cached_property
    def saved_models(self) -> Mapping[str, PolicySettings]:
        """Settings of every opponent that is a saved model, by name. None of them learns."""
        fixed = PolicySettings(learn=False)
        return {
            name: make(PolicySettings, node, where=f"population.opponents.{name}", base=fixed)
            for name, node in self.opponents.items()
            if isinstance(node, Mapping)
        }

    @cached_property
    def context_lengths(self) -> Mapping[str, int | None]:
        """Longest input in tokens of every policy and saved model, by name; None: unlimited or
        unknown."""
        served = {**self.policies, **self.saved_models}
        return {
            name: each.context_length if each.model else self.warmstart.context_length
            for name, each in served.items()
        }

    def where(self, name: str) -> str:
        """Return the config key of a policy's settings."""
        return f"population.overrides.{name}" if name in self.overrides else "policy"

    def learner_of(self, name: str) -> Mapping[str, Any]:
        """Return the settings that replace the run's learner settings for one policy."""
        return dict(self.overrides.get(name, {}).get(LEARNER, {}))

    def learns(self, name: str, step: int) -> bool:
        """Return True if the phases let a policy learn at a step; the first step is 1."""
        return learns(self.phases, name, step)

    def _check_opponents(self) -> None:
        """Raise ConfigError for an opponent that cannot play, or that has the name of a policy."""
        for name, opponent in self.opponents.items():
            where = f"population.opponents.{name}"
            if name in (SHARED, *self.role_names, *self.extra_policies):
                raise ConfigError(f"{where}: {name!r} names a policy or role; choose another name")
            _check_name(name, where=where)
            if isinstance(opponent, Mapping):
                for key in ("learn", "lora", "teacher"):
                    if key in opponent:
                        raise ConfigError(f"{where}.{key}: unknown key; a saved model is fixed")
                if not self.saved_models[name].model:
                    raise ConfigError(
                        f"{where}: names neither an engine (_target_) nor a saved model (model)"
                    )
            elif not isinstance(opponent, SteppingEngine):
                plain = opponent is None or isinstance(opponent, str | int | float | list)
                shown = repr(opponent) if plain else type(opponent).__name__
                advice = (
                    "write {_target_: selfplay.engines.scripted.Scripted, script: {_target_: ...}}"
                    if callable(opponent)
                    else "give it a model, or a _target_ that is an engine, such as "
                    "selfplay.engines.scripted.Scripted"
                )
                raise ConfigError(f"{where}: {shown} cannot play; {advice}")

    def _check_model(self, settings: PolicySettings, *, where: str) -> None:
        """Raise ConfigError for a policy without a model, and for an adapter that does not fit it.

        No weights are loaded. A model without a config on this machine is not checked.
        """
        if not settings.model and self.warmstart.tunes:
            raise ConfigError(
                f"{where}.model: missing, and the warm start fine-tunes one; choose "
                "policy=huggingface policy.model=NAME, or another warmstart"
            )
        if settings.lora is None:
            return
        if not settings.model and self.warmstart.kind is None:
            raise ConfigError(
                f"{where}.lora: an adapter needs a base; set policy.model, or choose a warmstart "
                "config"
            )
        from selfplay.models.lora import adapted_layers  # loads torch
        from selfplay.models.model_outline import outline

        base = outline(settings.model) if settings.model else self.warmstart.outline
        if base is not None:
            adapted_layers(settings.lora, base, where=f"{where}.lora")

    def check_served(self, engine: object) -> None:
        """Raise ConfigError for a model that the engine refuses, as far as the model's config on
        this machine shows. No weights are loaded."""
        if not isinstance(engine, ChoosyEngine):
            return
        from selfplay.models.model_outline import outline  # loads torch

        served = {self.where(name): each for name, each in self.policies.items()}
        served |= {f"population.opponents.{name}": each for name, each in self.saved_models.items()}
        known: dict[str, str] = {}
        for where, each in served.items():
            if not each.model:
                continue
            if each.model not in known:
                made = outline(each.model)
                known[each.model] = "" if made is None else engine.refusal(made)
            if problem := known[each.model]:
                raise ConfigError(f"{where}.model: {problem}")

    def _check_learning(self) -> None:
        """Raise ConfigError unless a policy learns, and the phases name exactly the policies that
        learn."""
        policies = self.policies
        if not self.learning:
            raise ConfigError("population: no policy learns; set learn=true for at least one")
        for number, phase in enumerate(self.phases):
            where = f"population.phases.{number}.learn"
            for name in phase.learn:
                if name not in policies:
                    raise ConfigError(f"{where}: no policy {name!r}; {nearest(name, policies)}")
                if not policies[name].learn:
                    raise ConfigError(
                        f"{where}: policy {name!r} is frozen (learn: false), so that no phase can "
                        "let it learn; set learn: true, or take it out of the phase"
                    )
        for name, each in policies.items():
            if each.learn and self.phases and not any(name in phase.learn for phase in self.phases):
                raise ConfigError(
                    f"population.phases: policy {name!r} learns in none of them; add it to one, "
                    f"freeze it with population.overrides.{name}.learn=false, or mend its name "
                    "in population.roles"
                )
            if self.learner_of(name) and not each.learn:
                raise ConfigError(
                    f"population.overrides.{name}.learner: policy {name!r} is frozen (learn: "
                    "false), so these settings have no effect; set learn: true, or "
                    "drop them"
                )


def _check_name(name: str, *, where: str) -> None:
    """Raise ConfigError for a name that is not a plain word."""
    if not name.replace("_", "").replace("-", "").isalnum():
        raise ConfigError(f"{where}: a name has letters, digits, '-' and '_' only")


def check_known(names: Iterable[str], known: Iterable[str], *, where: str) -> None:
    """Raise ConfigError for the first name that is neither a policy nor an opponent."""
    known = list(known)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{where}: no policy or opponent {name!r} in the config; {nearest(name, known)}"
            )
