"""Find out if a game depends on the random draws of its arena."""

import json
from collections.abc import Callable
from typing import Any

from selfplay.arena import Arena
from selfplay.credit.replay import stages_of
from selfplay.rng import derive
from selfplay.types import Episode

TRIES = 4
"""Number of other seeds with which the game is compared."""


def draws_matter(arena: Callable[[], Arena], episode: Episode) -> bool:
    """Return True if the moves of an episode lead to another game with another seed of the arena.

    The moves are played with the episode's own seed and with `TRIES` other seeds. Two games differ
    if an agent sees something else, moves at another stage or is paid something else, or if a
    metric differs.

    Args:
        arena: Function that makes a new arena.
        episode: The episode whose moves are played again.
    """
    here = _course(arena(), episode, episode.seed)
    others = (derive(episode.seed, "other draws", number) for number in range(TRIES))
    return any(_course(arena(), episode, seed) != here for seed in others)


def _course(arena: Arena, episode: Episode, seed: int) -> list[Any]:
    """Return the observations and payments of a game, which ends early if the moves do not fit.

    An error of the arena is part of the course: moves that fit one deal may break another.
    """
    course: list[Any] = []
    try:
        arena.begin(episode.task, seed)
        for moves in stages_of(episode):
            course.append([observed(arena, agent) for agent in arena.stage])
            if arena.finished or set(arena.stage) != set(moves):
                return course
            arena.play_stage(moves)
            course.append(dict(arena.paid))
        course.append((arena.finished, dict(arena.metrics)))
    except Exception as error:
        course.append(type(error).__name__)
    return course


def observed(arena: Arena, agent: str) -> str:
    """Return the plain data of an agent's observation, as text."""
    seen = arena.view(agent)
    shown = [agent, seen.text, seen.fields]
    return json.dumps(shown, skipkeys=True, default=lambda value: type(value).__name__)
