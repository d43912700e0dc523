"""Tests of a private copy of the global random generators."""

import random
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import numpy as np

from arenas.external.private_random import PrivateRandom


def state() -> str:
    """Return the state of the process's global generators."""
    return repr((random.getstate(), np.random.get_state(legacy=False)))


def drawn(private: PrivateRandom) -> list[float]:
    """Return six numbers; a pause in each block lets another thread begin its own block."""
    found: list[float] = []
    for _ in range(3):
        with private.swapped():
            found.append(random.random())
            sleep(0.002)
            found.append(float(np.random.random()))
    return found


def test_games_in_threads_draw_the_same_numbers_as_alone() -> None:
    before = state()
    alone = [drawn(PrivateRandom(seed)) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(drawn, map(PrivateRandom, range(4))))
    assert together == alone and len({each[0] for each in alone}) == 4
    assert state() == before


def test_a_game_inside_a_game_has_its_own_numbers() -> None:
    (first, second) = (drawn(PrivateRandom(seed)) for seed in (1, 2))
    outer = PrivateRandom(1)
    with outer.swapped():
        assert random.random() == first[0]
        assert drawn(PrivateRandom(2)) == second
        assert float(np.random.random()) == first[1]
