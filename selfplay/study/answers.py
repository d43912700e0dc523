"""Counts of how moves answer those of the round before, from [rounds, 2] moves of one game."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

BOTH = (0, 1)
"""Indices of the players whose moves are counted together."""


def answers(moves: np.ndarray, players: Sequence[int] = BOTH) -> list[list[float]]:
    """[[cooperations, all] after the other's C, the same after its D] of these players together."""
    found = [[0.0, 0.0], [0.0, 0.0]]
    for _, other, now in transitions(moves, players):
        after = found[0 if other else 1]
        after[0] += now
        after[1] += 1
    return found


def in_state(moves: np.ndarray, state: str, players: Sequence[int] = BOTH) -> list[float]:
    """[cooperations, visits] of these players together after this state."""
    after = transitions(moves, players)
    answers = [now for own, other, now in after if "DC"[own] + "DC"[other] == state]
    return [float(sum(answers)), float(len(answers))]


def transitions(moves: np.ndarray, players: Sequence[int] = BOTH) -> Iterator[tuple[int, int, int]]:
    """(own last, the other's last, own next) of these players, where all three were legal."""
    for before, now in pairwise(moves):
        for me in players:
            found = (before[me], before[1 - me], now[me])
            if np.isfinite(found).all():
                yield int(found[0]), int(found[1]), int(found[2])
