"""From a config's league to the one of a run."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from selfplay.arena import Arena
from selfplay.config.instantiate import TARGET, build, join
from selfplay.engines import ServingEngine
from selfplay.errors import ConfigError
from selfplay.league.config import LeagueConfig
from selfplay.league.league import League, NoLeague
from selfplay.league.snapshots import Snapshots
from selfplay.learner import Trainer
from selfplay.models.policy import Policy
from selfplay.models.population import Population
from selfplay.rollout.policy_pool import PolicyPool
from selfplay.rollout.rollout import RolloutFn

AnyLeague: TypeAlias = League | NoLeague


def validate(node: Mapping[str, Any], population: Population, roles: Iterable[str]) -> None:
    """Raise ConfigError for a league that could not be; an empty one is none."""
    found = population.policies(roles)
    learning = [name for name, settings in found.items() if settings.get("learn", True)]
    seated: Iterable[str] = ()
    if node:
        settings = _settings(node)
        settings.validate(learning, population.opponents)
        seated = settings.players
    for name in population.extra_policies:
        if name not in seated:
            raise ConfigError(
                f"population.extra_policies: {name!r} has no role, and no league.players names "
                "it, so that it would never play"
            )


class LeaguePlan:
    """A league before there are policies: what can be wrong with it is known already."""

    def __init__(self, node: Mapping[str, Any], *, arena: Arena, population: Population) -> None:
        """Raises ConfigError where the arena has no seats for a league."""
        self.settings = _settings(node) if node else None
        if self.settings is not None:
            self.seats, self.own = self.settings.contested(arena, population.policy_of)
            if self.own in population.opponents:
                raise ConfigError(
                    f"league.seats: they are played by {self.own!r}, an opponent, of whom there "
                    "are no snapshots; give their role a policy (learn: false freezes it), and "
                    "name the opponent in league.anchors"
                )
            self.anchors = self.settings.known_anchors(population.opponents)

    def league(
        self,
        *,
        policies: Mapping[str, Policy],
        learners: Mapping[str, Trainer],
        policy_pool: PolicyPool,
        engine: ServingEngine,
        rollout_fn: RolloutFn,
        seed: int,
    ) -> AnyLeague:
        """The league of these policies."""
        if self.settings is None:
            return NoLeague(rollout_fn)
        players = self.settings.named(self.own)
        again = [name for name, each in players.items() if each.matchmaking.reset]
        return League(
            self.settings,
            seats=self.seats,
            own=self.own,
            anchors=self.anchors,
            snapshots=Snapshots(policies, policy_pool, engine, begin_again=again),
            learners=learners,
            rollout_fn=rollout_fn,
            seed=seed,
        )


def _settings(node: Mapping[str, Any]) -> LeagueConfig:
    if TARGET not in node:
        raise ConfigError(f"{join('league', TARGET)}: missing; it names the class to build")
    made = build(node, where="league")
    if not isinstance(made, LeagueConfig):
        raise ConfigError(f"league: {type(made).__name__} is not a LeagueSettings")
    return made
