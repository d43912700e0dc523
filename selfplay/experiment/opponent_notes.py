"""Notes about opponents that a config names and does not use, or uses and does not name."""

from selfplay.config.compose import choices
from selfplay.config.plain_data import leaves
from selfplay.errors import closest
from selfplay.league.config import LeagueConfig
from selfplay.models.population import Population
from selfplay.rollout.setup import RolloutSetup


def missing_opponents(population: Population) -> list[str]:
    """Return a line for each role whose policy has the name of an opponent that was not added, or
    nearly the name of one that was."""
    shipped, notes = choices("opponents"), []
    for role, name in population.roles.items():
        meant = closest(name, population.opponents)
        if name in population.opponents or not (name in shipped or meant):
            continue
        advice = f"+opponents={name} adds it" if name in shipped else f"did you mean {meant!r}?"
        notes.append(
            f"population.roles.{role}: the config has no opponent {name!r}, so {name!r} is a "
            f"policy of its own, which {'learns' if name in population.learning else 'is frozen'}; "
            f"{advice}"
        )
    return notes


def unused_opponents(players: RolloutSetup, league: LeagueConfig | None) -> list[str]:
    """Return a line for each opponent that plays no role and in no league or evaluation.

    An opponent whose name is a key or a value anywhere else in the config counts as used.
    """
    settings = dict(players.config)
    population = dict(settings.pop("population"))
    population.pop("opponents", None)
    used = {value for _, value in leaves([settings, population], "") if isinstance(value, str)}
    used |= set(league.anchor_names if league else ())
    return [
        f"population.opponents.{name}: it plays in no role, league or evaluation of this run; give "
        f"it a role (+population.roles.ROLE={name}), name it in an evaluation "
        f"(evaluations.NAME.opponents=[{name}]), or choose league=anchors"
        for name in players.population.opponents
        if name not in used
    ]
