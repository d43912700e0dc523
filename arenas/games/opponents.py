"""Scripted opponents for any arena that lists moves in the field `legal`."""

from random import Random

from selfplay.types import Observation


def random_legal(agent: str, observation: Observation, rng: Random) -> str:
    """Return a uniformly random legal move; raises ValueError if the observation lists none."""
    legal = observation.fields.get("legal")
    if not legal:
        raise ValueError(f"{agent}: the field `legal` of its observation lists no moves")
    return str(rng.choice(list(legal)))
