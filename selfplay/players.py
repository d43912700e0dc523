"""Everything that plays: a world, the policies in it, what serves them, and their rollouts.

An experiment has one, and so has every worker that plays for it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfplay import members
from selfplay.build import build, construct, fit
from selfplay.engines import ServingEngine
from selfplay.evaluation import Evaluation
from selfplay.policy import Policy
from selfplay.population import Population
from selfplay.rollout import Rollout
from selfplay.seating import Seating
from selfplay.world import World


class Players:
    """Made in two steps, because policies cost minutes and everything else can be wrong before."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """The world and the evaluations; raises ConfigError for the first that cannot be built."""
        self.config = config
        self.seed = int(config["seed"])
        self.world = World(config)
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
        self.policies: dict[str, Policy] = members.load(
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
        self.seating = Seating(
            roles=self.world.roles,
            policy_of=self.population.policy_of,
            sampling=self.config["sampling"],
            rollout=self.config["rollout"],
        )
        members.seat(self.population, self.policies, self.seating, engine)
        self.rollout: Rollout = self.seating.rollout(self.world.arena)
        """That of training."""
        self.rollouts = {
            name: self.seating.rollout(each.arena, temperature=each.temperature)
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
        engines = self.seating.engines if hasattr(self, "seating") else {}
        return {
            **{f"service/{name}": service for name, service in self.world.services.items()},
            **{f"engine/{name}": engine for name, engine in engines.items()},
        }

    def _evaluation(self, where: str, node: Mapping[str, Any]) -> Evaluation:
        rest = {key: value for key, value in node.items() if key != "arena"}
        built = build(rest, where=where, provided=self.world.services)
        checked = fit(Evaluation, built, where=where, provided=("arena",))
        arena = self.world.arena_of(node["arena"], where=f"{where}.arena")
        evaluation: Evaluation = construct(Evaluation, {"arena": arena, **checked}, where=where)
        return evaluation
