"""Everything that plays: a world, the policies in it, what serves them, and their rollouts.

An experiment has one, and so has every worker that plays for it.

The world of a config: its services, roles and arenas. No policy, and nothing that learns.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from selfplay.arena import Arena
from selfplay.config.instantiate import build, call, check_arguments, resolve
from selfplay.engines import ServingEngine
from selfplay.errors import ConfigError, nearest
from selfplay.models.policy import Policy
from selfplay.models.population import Population
from selfplay.role import Role
from selfplay.rollout import policies
from selfplay.rollout.evaluation import Evaluation
from selfplay.rollout.policy_pool import PolicyPool
from selfplay.rollout.rollout import Rollout


class Components:
    """Built once; whoever built it closes it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises ConfigError for the first thing that cannot be built."""
        self.config = config
        self.services: dict[str, Any] = {"seed": int(config["seed"])}
        """By name, and the seed, as what is built from the config is given them."""
        try:
            for name, node in config["services"].items():
                self.services[name] = build(node, where=f"services.{name}", provided=self.services)
            self.roles: dict[str, Role] = {
                name: build(node, where=f"roles.{name}", provided=self.services)
                for name, node in config["roles"].items()
            }
            self.arena = self.arena_of(config["arena"], where="arena")
        except BaseException:
            self.close()
            raise

    def build(self, key: str, **given: Any) -> Any:
        """What the config has under a key, given the services and whatever else there is."""
        return build(self.config[key], where=key, provided={**self.services, **given})

    def arena_of(self, node: Mapping[str, Any], *, where: str) -> Callable[[], Arena]:
        """What makes a fresh arena; one is made now, to see that its roles are there."""
        target, arguments = resolve(node, where=where, provided=self.services)

        def make() -> Arena:
            made: Arena = call(target, arguments, where=where)
            return made

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
            if hasattr(service, "close"):
                service.close()


class RolloutSetup:
    """Made in two steps, because policies cost minutes and everything else can be wrong before."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """The world and the evaluations; raises ConfigError for the first that cannot be built."""
        self.config = config
        self.seed = int(config["seed"])
        self.world = Components(config)
        try:
            self.population: Population = build(config["population"], where="population")
            self.evaluations: dict[str, Evaluation] = {
                name: self._evaluation(f"evaluations.{name}", node)
                for name, node in config["evaluations"].items()
            }
        except BaseException:
            self.close()
            raise

    def load(
        self,
        engine: ServingEngine,
        *,
        saved: Path | None = None,
        afresh: bool = False,
        device: str | None = None,
    ) -> None:
        """The policies, in an engine and on their seats.

        Args:
            engine: What will serve them.
            saved: A checkpoint to take the policies from, not the models that they began as.
            afresh: See `members.load`.
            device: Where they are, if not where their settings say.
        """
        self.engine, self.saved = engine, saved
        self.policies: dict[str, Policy] = policies.load(
            self.population,
            self.config["roles"],
            warmstart=self.config["warmstart"],
            seed=self.seed,
            saved=saved,
            afresh=afresh,
            device=device,
        )
        for name, policy in self.policies.items():
            engine.serve(name, policy.model, policy.renderer.end_ids)
        self.policy_pool = PolicyPool(
            roles=self.world.roles,
            policy_of=self.population.policy_of,
            sampling=self.config["sampling"],
            rollout=self.config["rollout"],
        )
        policies.seat(self.population, self.policies, self.policy_pool, engine)
        self.rollout: Rollout = self.policy_pool.rollout(self.world.arena)
        """That of training."""
        self.rollouts = {
            name: self.policy_pool.rollout(each.arena, temperature=each.temperature)
            for name, each in self.evaluations.items()
        }
        """Those of the evaluations, by name."""
        self.counts()  # loading is no part of what is played, here, on a worker or after a resume

    def counts(self) -> dict[str, float]:
        """What services and engines counted since they were last asked, by figure."""
        figures: dict[str, float] = {}
        for name, each in self._outside().items():
            if hasattr(each, "drain_counts"):
                counts = each.drain_counts()
                figures |= {f"{name}/{key}": float(value) for key, value in counts.items()}
        return figures

    def close(self) -> None:
        """Release services and engines that hold processes or connections."""
        for each in {id(each): each for each in self._outside().values()}.values():
            if hasattr(each, "close"):
                each.close()

    def _outside(self) -> dict[str, Any]:
        """Services, and engines where they are built, under the names of their figures."""
        engines = self.policy_pool.engines if hasattr(self, "policy_pool") else {}
        return {
            **{f"service/{name}": service for name, service in self.world.services.items()},
            **{f"engine/{name}": engine for name, engine in engines.items()},
        }

    def _evaluation(self, where: str, node: Mapping[str, Any]) -> Evaluation:
        rest = {key: value for key, value in node.items() if key != "arena"}
        built = build(rest, where=where, provided=self.world.services)
        checked = check_arguments(Evaluation, built, where=where, provided=("arena",))
        arena = self.world.arena_of(node["arena"], where=f"{where}.arena")
        evaluation: Evaluation = call(Evaluation, {"arena": arena, **checked}, where=where)
        return evaluation
