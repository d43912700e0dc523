"""Tests of observations as text and of moves as text, by hand."""

from random import Random
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from arenas.external.boards import written
from arenas.external.moves import Moves

PLANES = np.zeros((2, 3, 2), int)
PLANES[0, 1, 0] = PLANES[1, 2, 1] = 1
OVERLAP = PLANES.copy()
OVERLAP[0, 1, 1] = 1


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ("as it is", "as it is"),
        (None, ""),
        (3, "3"),
        (np.float32(0.25), "0.25"),
        (1_234_567, "1234567"),
        (np.inf, "inf"),
        ([1, 2.5, 3], "1 2.5 3"),
        (np.array([[1, 0], [0, 2]]), "1 0\n0 2"),
        (np.eye(20)[4], "ones at 4"),
        (np.zeros(20), "ones at no place"),
        (PLANES, ". 1 .\n. . 2"),
        (OVERLAP, "plane 1: 1,2\nplane 2: 1,2 2,3"),
        (np.stack([np.full((2, 2), 0.5), np.ones((2, 2))], -1), "plane 1: 0.5 everywhere\n"
         "plane 2: everywhere"),
        (np.arange(4).reshape(2, 2, 1), "plane 1: 0 1 / 2 3"),
        (np.zeros((1, 2, 2, 1)), "layer 1:\n. .\n. ."),
        ({"observation": [1], "action_mask": [1, 0]}, "1"),
        ({"cards": [1, 2], "board": np.eye(2)}, "cards: 1 2\nboard:\n1 0\n0 1"),
        (("one", np.array([2])), "one\n2"),
    ],
)  # fmt: skip
def test_an_observation_is_written(observation: Any, text: str) -> None:
    assert written(observation) == text


DISCRETE = Moves(spaces.Discrete(4, start=2), mask=np.array([1, 0, 1, 1]))
NAMED = Moves(spaces.Discrete(2), named=["rock", "2"].__getitem__)
BOX = Moves(spaces.Box(-1, 1, (2,), np.float32))
UNBOUNDED = Moves(spaces.Box(-np.inf, np.inf, (1,), np.float64))
COUNTS = Moves(spaces.MultiDiscrete([2, 3]))
BITS = Moves(spaces.MultiBinary(2))
WORDS = Moves(spaces.Text(3, charset="ab"))


@pytest.mark.parametrize(
    ("moves", "text", "action"),
    [
        (DISCRETE, "2", 2),
        (DISCRETE, " 5\n", 5),
        (DISCRETE, "3", None),
        (DISCRETE, "+2", None),
        (NAMED, "rock", 0),
        (NAMED, "2", 1),
        (NAMED, "0", None),
        (BOX, "[0.5, -1]", [0.5, -1.0]),
        (BOX, "0.5 1.5", None),
        (BOX, "nan 0", None),
        (BOX, "0.5", None),
        (BOX, "0 " * 100, None),
        (BOX, "1e400 0", None),
        (UNBOUNDED, "1e300", [1e300]),
        (UNBOUNDED, "inf", None),
        (COUNTS, "1 2", [1, 2]),
        (COUNTS, "2 0", None),
        (COUNTS, "1.0 2", None),
        (COUNTS, "9" * 60, None),
        (BITS, "1,0", [1, 0]),
        (BITS, "300 0", None),
        (WORDS, "aba", "aba"),
        (WORDS, "abc", None),
    ],
)
def test_a_text_is_read_as_a_move(moves: Moves, text: str, action: Any) -> None:
    read = moves.read(text)
    if isinstance(action, list):
        assert read is not None and read.tolist() == action and moves.space.contains(read)
    else:
        assert read == action and type(read) is type(action)


@pytest.mark.parametrize("moves", [DISCRETE, NAMED, BOX, COUNTS, BITS, WORDS])
def test_a_drawn_move_is_legal_and_seeded(moves: Moves) -> None:
    for seed in range(20):
        drawn = moves.draw(Random(seed))
        assert moves.space.contains(drawn)
        assert np.array_equal(drawn, moves.draw(Random(seed)))
        assert not moves.actions or drawn in moves.actions.values()


def test_the_legal_moves_and_the_form_of_a_move() -> None:
    assert (DISCRETE.legal, DISCRETE.form) == (["2", "4", "5"], "")
    assert BOX.form == "2 numbers, separated by spaces, each from -1 to 1"
    assert COUNTS.form == "2 numbers, separated by spaces: 0 to 1; 0 to 2"
    assert BITS.form == "2 numbers, separated by spaces, each 0 or 1"
    assert WORDS.form == "any text of at most 3 characters"
