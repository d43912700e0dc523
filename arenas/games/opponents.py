"""Scripted opponents for any arena that lists moves in the field `legal`."""

from random import Random

from selfplay.types import Observation


def random_legal(agent: str, observation: Observation, rng: Random) -> str:
    """Return a uniformly random legal move, and an empty text in a phase of messages.

    Raises ValueError for any other observation that lists no legal moves, or that has them in a
    set.
    """
    if observation.fields.get("phase") == "message":
        return ""
    legal = legal_moves(observation)
    if not legal:
        raise ValueError(
            f"{agent}: the field `legal` of its observation lists no moves; name a script for it"
        )
    return str(rng.choice(legal))


def legal_moves(observation: Observation) -> list[str]:
    """Return the moves that an observation lists in the field `legal`; empty if there are none.

    Raises ValueError for a set: its order, and so a random move, differs from process to process.
    """
    legal = observation.fields.get("legal")
    if isinstance(legal, set | frozenset):
        raise ValueError(
            f"the field `legal` of an observation is a {type(legal).__name__}, whose order differs "
            "from process to process; make it a list, such as sorted(legal)"
        )
    return list(legal or ())
