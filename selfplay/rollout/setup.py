"""Builds everything that a rollout needs, in reading order: services, roles, arenas, policies,
engine, rollouts."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from selfplay.arena import Arena
from selfplay.config.instantiate import TARGET, build, call, check_arguments, resolve
from selfplay.engines import Engine
from selfplay.errors import ConfigError, nearest
from selfplay.models.policy import Policy, load_policy
from selfplay.models.population import Population
from selfplay.role import Role
from selfplay.rollout.evaluation import Evaluation
from selfplay.rollout.policies import load_policies, placed_at
from selfplay.rollout.policy_pool import PolicyPool
from selfplay.rollout.rollout import Rollout
from selfplay.rollout.service import Closable, Measured

METHODS = {
    "run": "keeps_checkpoint",
    "curriculum": "tasks",
    "population": "policy_of",
    "sampler": "sample",
    "credit": "assign",
    "collapse": "seed",
    "runtime": "check",
}
"""Name of the method that the object of each config key must have."""


class Components:
    """The services, roles and arena of a config, without policies.

    The commands `replay`, `play` and `train --cfg` use it alone; a `RolloutSetup` adds policies.
    Its maker calls `close`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises ConfigError for the first part that cannot be built."""
        self.config = config
        self.seed = int(config["seed"])
        self.services: dict[str, Any] = {"seed": self.seed}
        """Services by name, and the seed: the arguments that other parts of a config may take."""
        try:
            for name, node in config["services"].items():
                self.services[name] = build(node, where=f"services.{name}", provided=self.services)
            self.roles: dict[str, Role] = {
                name: build(node, where=f"roles.{name}", provided=self.services)
                for name, node in config["roles"].items()
            }
            self.arena = self.arena_factory(config["arena"], where="arena")
        except BaseException:
            self.close()
            raise

    def build(self, key: str, **provided: Any) -> Any:
        """Return the object of a config key, built with the services and with `provided`.

        Raises ConfigError if it cannot be built, or lacks the method that its key needs.
        """
        node = self.config[key]
        built = build(node, where=key, provided={**self.services, **provided})
        if key in METHODS and not hasattr(built, METHODS[key]):
            raise ConfigError(
                f"{key}.{TARGET}: {node[TARGET]} has no method {METHODS[key]!r}, so it is not a "
                f"valid {key}; see selfplay list {key}"
            )
        return built

    def arena_factory(self, node: Mapping[str, Any], *, where: str) -> Callable[[], Arena]:
        """Return a function that makes new arenas; raises ConfigError if a role is missing."""
        target, arguments = resolve(node, where=where, provided=self.services)

        def make() -> Arena:
            arena: Arena = call(target, arguments, where=where)
            return arena

        for role in make().roles:
            if role not in self.roles:
                raise ConfigError(
                    f"roles: none is called {role!r}, which {where} needs; choose roles=NAME for "
                    f"this arena, or add roles.{role} ({nearest(role, self.roles)})"
                )
        return make

    def close(self) -> None:
        """Release services that hold processes."""
        for service in self.services.values():
            if isinstance(service, Closable):
                service.close()


class RolloutSetup(Components):
    """Everything that plays: services, roles, arenas, policies, and their rollouts.

    An experiment makes one, and so does every rollout worker. It is made in two steps, `__init__`
    and `load`, because loading policies can take minutes and every other fault is found before.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Build everything but the policies; raises ConfigError for the first faulty part."""
        self._engines: Mapping[str, Engine] = {}
        super().__init__(config)
        try:
            self.population: Population = self.build("population")
            self.policy_pool = PolicyPool(
                roles=self.roles,
                policy_of=self.population.policy_of,
                sampling=config["sampling"],
                rollout=config["rollout"],
            )
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
    ) -> None:
        """Load the policies, serve them in the engine, and make the rollouts.

        Args:
            engine: Serves the policies.
            saved: Checkpoint to load the policies from, instead of their initial models.
            afresh: See `load_policies`.
            device: Device of the policies, in place of the configured one.
            dtype: Type of the weights of models that are configured in float32.
            only: Names of the policies and opponents to serve; no rollouts are made for them.
                None: all, with the rollouts.
        """
        self.engine, self.saved = engine, saved
        self.policies: dict[str, Policy] = load_policies(
            self.population,
            self.config["roles"],
            warmstart=self.config["warmstart"],
            seed=self.seed,
            saved=saved,
            afresh=afresh,
            device=device,
            dtype=dtype,
            only=only,
        )
        for name, policy in self.policies.items():
            engine.serve(name, policy.model, policy.renderer.end_ids)
        self._engines = self.policy_pool.engines
        for name, policy in self.policies.items():
            self.policy_pool.add(name, engine, policy.renderer, learn=policy.learn)
        self._add_opponents(device=device, dtype=dtype, only=only)
        if only is not None:
            return
        self.rollout: Rollout = self.policy_pool.rollout(self.arena)
        """The rollout of training."""
        self.rollouts = {
            name: self.policy_pool.rollout(each.arena, temperature=each.temperature)
            for name, each in self.evaluations.items()
        }
        """The rollouts of the evaluations, by name."""
        self.counts()  # reset the counters: loading is not part of a step

    def counts(self) -> dict[str, float]:
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

    def close(self) -> None:
        """Release services and engines that hold processes or connections."""
        super().close()
        for engine in self._distinct_engines():
            engine.close()

    def _distinct_engines(self) -> list[Engine]:
        """Return the engines; one that serves several policies is listed once."""
        return list({id(engine): engine for engine in self._engines.values()}.values())

    def _add_opponents(
        self, *, device: str | None, dtype: str | None, only: Collection[str] | None
    ) -> None:
        """Add the population's opponents, or those of `only`, to the pool.

        An opponent that is a saved model is loaded here. It does not learn, and no checkpoint
        stores it.
        """
        saved = self.population.checkpoints()
        for name, opponent in self.population.opponents.items():
            if only is not None and name not in only:
                continue
            if name not in saved:
                self.policy_pool.add(name, opponent)
                continue
            settings = placed_at(saved[name], device=device, dtype=dtype)
            policy = load_policy(name, **settings, learn=False)
            self.engine.serve(name, policy.model, policy.renderer.end_ids)
            self.policy_pool.add(name, self.engine, policy.renderer)

    def _evaluation(self, where: str, node: Mapping[str, Any]) -> Evaluation:
        rest = {key: value for key, value in node.items() if key != "arena"}
        built = build(rest, where=where, provided=self.services)
        checked = check_arguments(Evaluation, built, where=where, provided=("arena",))
        arena = self.arena_factory(node["arena"], where=f"{where}.arena")
        evaluation: Evaluation = call(Evaluation, {"arena": arena, **checked}, where=where)
        return evaluation
