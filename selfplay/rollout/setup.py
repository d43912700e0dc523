"""Build everything that a rollout needs, in this order: services, roles, arenas, policies, engine,
rollouts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from selfplay.arena import Arena
from selfplay.author_code import check_members
from selfplay.config.instantiate import (
    TARGET,
    build,
    call,
    check_arguments,
    make,
    resolve,
    services_named,
)
from selfplay.config.plain_data import COLLECTIONS
from selfplay.config.shipped_configs import with_keys
from selfplay.engines import Engine
from selfplay.engines.truncation import truncates
from selfplay.errors import ConfigError, closest, nearest
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.models.policy import Policy, load_policy
from selfplay.models.population import Population, check_known
from selfplay.models.warmstart_settings import WarmStartSettings
from selfplay.role import Role
from selfplay.rollout.evaluation import Evaluation
from selfplay.rollout.policies import load_policies
from selfplay.rollout.policy_pool import PolicyPool
from selfplay.rollout.rollout import Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.rollout.sampling_settings import SamplingSettings
from selfplay.rollout.schedule import make_scheduled
from selfplay.rollout.service import Closable, HoldsModel, Measured
from selfplay.types import role_of


class Components:
    """The services, roles and arena of a config, without policies.

    The command `replay`, episodes of a person against a script, and the study `behaviour` use it
    alone; a `RolloutSetup` adds policies. The code that makes it must call `close`.
    """

    def __init__(self, config: Mapping[str, Any], *, unplayed: Collection[str] = ()) -> None:
        """Build services, roles and arena in this order.

        Raises ConfigError for the first part that is faulty.

        Args:
            config: The config.
            unplayed: Keys of arenas that will not be played: `arena`, or `evaluations`. The models
                of services that only these name are not loaded.
        """
        self.config = config
        self.seed = int(config["seed"])
        self.playable: set[str] = set()
        """Roles of the arenas that were made, with their `optional_roles`."""
        self.services: dict[str, Any] = {"seed": self.seed}
        """Services by name, and the seed: the arguments that other parts of a config may take."""
        self._opened = ExitStack()
        self._unplayed = unplayed
        try:
            for name, node in config["services"].items():
                service = build(node, where=f"services.{name}", provided=self.services)
                self.services[name] = service
                if isinstance(service, Closable):
                    self._opened.callback(service.close)
            self.roles: dict[str, Role] = {
                name: build(node, where=f"roles.{name}", provided=self.services)
                for name, node in config["roles"].items()
            }
            for name, role in self.roles.items():
                if not isinstance(role, Role):
                    raise ConfigError(
                        f"roles.{name}.{TARGET}: {type(role).__name__} is not a selfplay.Role; "
                        "derive it from that class"
                    )
                if not hasattr(role, "memory"):
                    raise ConfigError(
                        f"roles.{name}: {type(role).__name__}.__init__ does not call "
                        "super().__init__(); add the call"
                    )
            self.arena = self.arena_factory(config["arena"], where="arena")
        except BaseException:
            self.close()
            raise

    def build(self, key: str, **provided: Any) -> Any:
        """Return the object of a config key, built with the services and with `provided`.

        Return None for an empty key, which needs no object. Raises ConfigError if the object cannot
        be built, or lacks an attribute that its key needs.
        """
        node = self.config[key]
        if not node and key not in COLLECTIONS:
            return None
        built = build(node, where=key, provided={**self.services, **provided})
        check_members(built, key, f"{key}.{TARGET}")
        return built

    def arena_factory(self, node: Mapping[str, Any], *, where: str) -> Callable[[], Arena]:
        """Return a function that makes new arenas; raises ConfigError if a role is missing."""
        target, arguments = resolve(node, where=where, provided=self.services)

        def make() -> Arena:
            arena: Arena = call(target, arguments, where=where)
            return arena

        first = make()
        check_made(first, where=where)
        self.playable.update(first.roles, first.optional_roles)
        for role in first.roles:
            if role not in self.roles:
                raise ConfigError(
                    f"roles: none is called {role!r}, which {first.name} ({where}) needs; "
                    f"{_role_hint(role, set(first.roles), self.roles)}"
                )
        return make

    def load_services(self) -> None:
        """Load the models of services that are played, in a process that plays episodes."""
        services = self.config["services"]
        aside = ("services", "warmstart", *self._unplayed)  # a warm start gets no services
        parts = {key: node for key, node in self.config.items() if key not in aside}
        played = services_named(parts, services) if self._unplayed else services.keys()
        for name, service in self.services.items():
            if name in played and isinstance(service, HoldsModel):
                service.load_weights()

    def close(self) -> None:
        """Release everything that holds processes or connections, the newest first.

        An error of one does not keep the others open. A second call does nothing.
        """
        self._opened.close()


def _role_hint(role: str, needed: Collection[str], known: Collection[str]) -> str:
    """Return the advice for a missing role.

    If a role with nearly this name is known: its new name. Otherwise at most 4 shipped configs with
    all needed roles, first the one with the name of the role, then those with the fewest others.
    """
    if (close := closest(role, known)) is not None:
        return f"rename roles.{close} to {role}, or add roles.{role}"
    fitting = sorted(with_keys("roles", needed), key=lambda name: name != role)
    named = [f"roles={name}" for name in fitting[:4]]
    return f"choose {' or '.join(named or ['roles=NAME'])}, or add roles.{role}._target_"


def check_made(arena: object, *, where: str) -> None:
    """Raise ConfigError for an object that is not an arena, or an arena without agents."""
    name = type(arena).__name__
    if not isinstance(arena, Arena):
        raise ConfigError(
            f"{where}.{TARGET}: {name} is not a selfplay.Arena; derive it from that class"
        )
    if not hasattr(arena, "possible_agents"):
        raise ConfigError(
            f"{where}: {name}.__init__ does not call super().__init__(); add the call"
        )
    if not arena.roles:
        raise ConfigError(
            f"{where}: {name} has no roles; write for example roles = {{'player': 2}} in the class"
        )


class RolloutSetup(Components):
    """Everything that plays: services, roles, arenas, policies, and their rollouts.

    An experiment makes one, and so does every rollout worker. It is made in two steps, `__init__`
    and `load`, because loading policies can take minutes and every other fault is found before.
    """

    def __init__(self, config: Mapping[str, Any], *, unplayed: Collection[str] = ()) -> None:
        """Build everything but the policies; raises ConfigError for the first faulty part."""
        self._engines: Mapping[str, Engine] = {}
        super().__init__(config, unplayed=unplayed)
        try:
            self.population: Population = self.build(
                "population",
                role_names=tuple(self.roles),
                warmstart=WarmStartSettings(config=config["warmstart"]),
            )
            self._opened.callback(self.population.close)
            self.learner_settings = self._learner_settings(config["learner"])
            """Settings of the learner of each policy."""
            self.sampling = self._sampling(config["sampling"])
            """Sampling limits by role, and those of `default`."""
            self.rollout_settings = make_scheduled(
                RolloutSettings, config["rollout"], where="rollout"
            )
            """Limits of the rollouts."""
            self.max_length: int | None = config["engine"].get("max_length")
            """The engine's limit of a prompt and its answer together, in tokens; None: unknown."""
            self.evaluations: dict[str, Evaluation] = {
                name: self._evaluation(f"evaluations.{name}", node)
                for name, node in config["evaluations"].items()
            }
        except BaseException:
            self.close()
            raise

    def load(
        self,
        engine: Engine,
        *,
        saved: Path | None = None,
        afresh: bool = False,
        device: str | None = None,
        dtype: str | None = None,
        only: Collection[str] | None = None,
        sent: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Load the policies, serve them in the engine, and make the rollouts.

        Args:
            engine: Serves the policies; `close` closes it too.
            saved: Checkpoint to load the policies from, instead of their initial models.
            afresh: See `load_policies`.
            device: Device of the policies, in place of the configured one.
            dtype: Type of the weights of models that are configured in float32.
            only: Names of the policies and opponents to serve; no rollouts are made for them.
                None: all, with the rollouts.
            sent: See `load_policies`.
        """
        self._opened.callback(engine.close)
        self.engine = engine
        self.saved = None if saved is None else saved.resolve()
        """The checkpoint, also for processes that run in another folder."""
        self.policies: dict[str, Policy] = load_policies(
            self.population,
            seed=self.seed,
            saved=saved,
            afresh=afresh,
            device=device,
            dtype=dtype,
            only=only,
            sent=sent,
        )
        # An engine may take all the memory that a GPU has left, so that everything is loaded first.
        opponents = self._saved_opponents(device=device, dtype=dtype, only=only)
        self.policy_pool = PolicyPool(
            roles=self.roles,
            policy_of=self.population.policy_of,
            sampling=self.sampling,
            rollout=self.rollout_settings,
        )
        for name, policy in {**self.policies, **opponents}.items():
            engine.serve(name, policy.model, policy.renderer.end_ids)
        self._engines = self.policy_pool.engines
        for name, policy in self.policies.items():
            self.policy_pool.add(name, engine, policy.renderer, learn=policy.learn)
        for name, opponent in self.population.opponents.items():
            if name in opponents:
                self.policy_pool.add(name, engine, opponents[name].renderer)
            elif only is None or name in only:
                self.policy_pool.add(name, opponent)
        if only is not None:
            return
        self.rollout: Rollout = self.policy_pool.rollout(self.arena)
        """The rollout of training."""
        self.rollouts = {
            name: self.policy_pool.rollout(each.arena, temperature=each.temperature)
            for name, each in self.evaluations.items()
        }
        """The rollouts of the evaluations, by name."""
        self.drain_counts()  # loading is not part of a step

    def check_context_length(self, loaded: Mapping[str, Policy] | None = None) -> None:
        """Raise ConfigError if the longest answer of a role leaves no room for a prompt.

        Args:
            loaded: The policies after `load`: only the model itself has the length if, for example,
                a warm start makes it. None: the lengths that the config and its files have.
        """
        lengths = dict(self.population.context_lengths)
        for name, policy in (loaded or {}).items():
            config = policy.model.config.get_text_config()
            lengths[name] = getattr(config, "max_position_embeddings", None)
        default = self.sampling["default"].longest()
        for role in self.roles:
            name, tokens = self.population.policy_of(role), self.sampling[role].longest()
            where = f"sampling.{'default' if tokens == default else role}.max_tokens"
            if name not in lengths:  # a scripted opponent counts no tokens
                continue
            if self.max_length is not None and tokens >= self.max_length:
                raise ConfigError(
                    f"{where}: {tokens} leaves no room for a prompt in engine.max_length="
                    f"{self.max_length}; lower this setting, or raise engine.max_length"
                )
            limit = lengths[name]
            if limit is not None and 0 < limit <= tokens:
                raise ConfigError(
                    f"{where}: {tokens} leaves no room for a prompt in the {limit} that the model "
                    f"of policy {name!r} reads; lower it"
                )

    def truncated(self) -> dict[str, str]:
        """Return each policy that learns from truncated sampling, with the first role that does."""
        cut: dict[str, str] = {}
        for role in self.roles:
            name, limits = self.population.policy_of(role), self.sampling[role]
            if name not in self.population.learning:
                continue
            if any(map(truncates, limits.settings_in_training())):
                cut.setdefault(name, role)
        return cut

    def drain_counts(self) -> dict[str, float]:
        """Return the counts of services and engines since the last call, by metric name."""
        counts: dict[str, Mapping[str, float]] = {
            f"service/{name}": service.drain_metrics()
            for name, service in self.services.items()
            if isinstance(service, Measured)
        }
        counts |= {
            f"engine/{name}": engine.drain_metrics() for name, engine in self._engines.items()
        }
        return {
            f"{name}/{key}": float(value)
            for name, metrics in counts.items()
            for key, value in metrics.items()
        }

    def _saved_opponents(
        self, *, device: str | None, dtype: str | None, only: Collection[str] | None
    ) -> dict[str, Policy]:
        """Return the population's opponents that are saved models, or those of `only`.

        They do not learn, and no checkpoint stores them.
        """
        return {
            name: load_policy(name, **vars(settings.placed_at(device=device, dtype=dtype)))
            for name, settings in self.population.saved_models.items()
            if only is None or name in only
        }

    def _learner_settings(self, node: Mapping[str, Any]) -> dict[str, LearnerSettings]:
        """Return the settings of the learner of each policy; its own replace those of the run."""
        run = make(LearnerSettings, node, where="learner")
        return {
            name: make(
                LearnerSettings,
                self.population.learner_of(name),
                where=f"population.overrides.{name}.learner",
                base=run,
            )
            for name in self.population.policies
        }

    def _sampling(self, node: Mapping[str, Any]) -> dict[str, SamplingSettings]:
        known = ("default", *self.roles)
        for name in node:
            if name not in known:
                raise ConfigError(f"sampling.{name}: no such role; {nearest(name, known)}")
        settings = make_scheduled(SamplingSettings, node["default"], where="sampling.default")
        return {
            name: make_scheduled(
                SamplingSettings, node.get(name, {}), where=f"sampling.{name}", base=settings
            )
            for name in known
        }

    def _evaluation(self, where: str, node: Mapping[str, Any]) -> Evaluation:
        rest = {key: value for key, value in node.items() if key != "arena"}
        built = build(rest, where=where, provided=self.services)
        checked = check_arguments(Evaluation, built, where=where, provided=("arena",))
        arena = self.arena_factory(node["arena"], where=f"{where}.arena")
        if checked.get("opponents"):
            checked = {**checked, "seats": self._seats(arena(), checked.get("seats"), where)}
        evaluation: Evaluation = call(Evaluation, {"arena": arena, **checked}, where=where)
        known = (*self.population.policies, *self.population.opponents)
        check_known(evaluation.opponents, known, where=f"{where}.opponents")
        return evaluation

    def _seats(self, arena: Arena, named: Sequence[str] | None, where: str) -> list[str]:
        """Return the seats of an evaluation: the named agents, or all agents whose role a policy of
        the run plays.

        Raises ConfigError if an opponent always plays a named agent, or all agents but one.
        """
        seats, fixed = list[str](), dict[str, str]()
        for agent in named or arena.possible_agents:
            role = role_of(agent)
            name = self.population.policy_of(role)
            if name in self.population.opponents:
                fixed[agent] = f"population.roles gives role {role!r} to opponent {name!r}"
            else:
                seats.append(agent)
        if not fixed or (len(seats) > 1 and not named):
            return seats
        agent, reason = next(iter(fixed.items()))
        if named:
            raise ConfigError(
                f"{where}.seats: {agent!r} cannot change seats, because {reason}, which always "
                "plays it; drop it here"
            )
        raise ConfigError(
            f"{where}.opponents: a match needs two seats, and there is "
            f"{seats[0] if seats else 'none'}, because {reason}; "
            f"drop population.roles.{role_of(agent)}, or the opponents here"
        )
