"""Opponents without a model: scripts for any arena that lists moves in the field `legal`."""

from random import Random

from selfplay.types import Observation


def random_legal(agent: str, observation: Observation, rng: Random) -> str:
    """A legal move, uniformly; raises ValueError where the observation lists none."""
    legal = observation.fields.get("legal")
    if not legal:
        raise ValueError(f"{agent}: the field `legal` of what it sees lists no moves")
    return str(rng.choice(list(legal)))
