"""Rounds of a repeated game whose players choose at once, and counts of what follows what."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from selfplay.study.matches import StudyMatches
from selfplay.types import Episode, Status


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Moves of all players by round. `rounds_of` makes it; `reciprocity` counts its moves."""

    moves: np.ndarray
    """[rounds, players] 1 for cooperation, 0 for another legal move, NaN for an illegal or missing
    move."""
    stages: tuple[int, ...]
    """[rounds] stage of each round."""


def rounds_of(games: StudyMatches, episode: Episode, cooperate: str) -> Rounds:
    """Return the rounds of an episode: stages in which all players move and none speaks.

    A failed episode has no rounds.
    """
    agents, arena = games.agents, games.arena()
    if episode.status is Status.FAILED:
        return Rounds(moves=np.zeros((0, len(agents))), stages=())
    arena.begin(episode.task, episode.seed)
    rows, stages = [], []
    by_stage: dict[int, dict[str, str | None]] = {}
    for turn in episode.turns:
        by_stage.setdefault(turn.stage, {})[turn.agent] = turn.action
    for stage, actions in sorted(by_stage.items()):
        if set(actions) == set(agents) and not arena.messengers():
            legal = [arena.view(agent).fields.get("legal") or () for agent in agents]
            rows.append(
                [
                    (float(actions[agent] == cooperate) if actions[agent] in known else np.nan)
                    for agent, known in zip(agents, legal, strict=True)
                ]
            )
            stages.append(stage)
        arena.play_stage(actions)
    return Rounds(moves=np.array(rows).reshape(len(rows), len(agents)), stages=tuple(stages))


def transitions(moves: np.ndarray, players: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (own last move, number of others that cooperated, own next move) of these players.

    Args:
        moves: [rounds, players] moves of one game, see `Rounds`. A pair of rounds is left out if a
            move of the first one, or the player's own next move, is missing.
        players: Indices of the players.
    """
    for before, now in pairwise(moves):
        for me in players:
            if np.isfinite([*before, now[me]]).all():
                yield int(before[me]), int(before.sum() - before[me]), int(now[me])


def answers(moves: np.ndarray, players: Sequence[int]) -> np.ndarray:
    """Return [2, players, (cooperations, all)] next moves of these players together.

    The first index is the player's own last move (1: cooperation), the second one the number of
    others that cooperated. `moves` and `players` are those of `transitions`.
    """
    found = np.zeros((2, moves.shape[1], 2))
    for own, others, now in transitions(moves, players):
        found[own, others] += (now, 1)
    return found


def cooperation(moves: Sequence[np.ndarray]) -> tuple[list[float], list[float]]:
    """Return the cooperations and the legal moves of each game, from [rounds, players] moves."""
    return (
        [float(np.nansum(each)) for each in moves],
        [float(np.isfinite(each).sum()) for each in moves],
    )
