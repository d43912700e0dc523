"""Scripted opponents for any arena that lists moves in the field `legal`."""

from random import Random

from selfplay.types import Observation


def random_legal(agent: str, observation: Observation, rng: Random) -> str:
    """Return a uniformly random legal move, and an empty text in a phase of messages.

    Raises ValueError for any other observation that lists no legal moves.
    """
    if observation.fields.get("phase") == "message":
        return ""
    legal = observation.fields.get("legal")
    if not legal:
        raise ValueError(
            f"{agent}: the field `legal` of its observation lists no moves; name a script for it"
        )
    return str(rng.choice(list(legal)))
