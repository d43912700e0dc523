"""The league of a run, built from its config."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from selfplay.arena import Arena
from selfplay.config.instantiate import TARGET, join
from selfplay.engines import Engine
from selfplay.errors import ConfigError
from selfplay.league.config import LeagueConfig
from selfplay.league.league import League
from selfplay.league.snapshots import Snapshots
from selfplay.learner import PolicyLearner
from selfplay.models.policy import Policy
from selfplay.models.population import Population
from selfplay.rollout.policy_pool import PolicyPool


class LeaguePlan:
    """A league before the policies are loaded: its settings, checked against the arena."""

    def __init__(self, settings: LeagueConfig, *, arena: Arena, population: Population) -> None:
        """Raises ConfigError if the arena has no seats for a league."""
        self.settings, self.agents_of = settings, arena.agents_of
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
        learners: Mapping[str, PolicyLearner],
        policy_pool: PolicyPool,
        engine: Engine,
        learning: Callable[[int], Collection[str]],
        seed: int,
        max_staleness: int = 0,
    ) -> League:
        """Return the league of the loaded policies.

        `learning` returns the policies that learn at a step, and `max_staleness` is the number of
        steps that are sampled ahead.
        """
        players = self.settings.named(self.own)
        again = [name for name, player in players.items() if player.matchmaking.reset]
        return League(
            self.settings,
            seats=self.seats,
            own=self.own,
            anchors=self.anchors,
            snapshots=Snapshots(policies, policy_pool, engine, begin_again=again),
            learners=learners,
            agents_of=self.agents_of,
            learning=learning,
            seed=seed,
            max_staleness=max_staleness,
        )


def league_config(built: Any) -> LeagueConfig | None:
    """Return what the config key `league` describes; None if it is empty, or ConfigError."""
    if isinstance(built, LeagueConfig):
        return built
    if isinstance(built, Mapping) and built:
        raise ConfigError(f"{join('league', TARGET)}: missing; it names the class to build")
    if built != {}:
        raise ConfigError(f"league: {type(built).__name__} is not a LeagueConfig")
    return None
