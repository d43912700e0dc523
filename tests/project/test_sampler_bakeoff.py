"""Tests of the comparison of samplers, with values by hand."""

from typing import Any

import numpy as np
import pytest

from tests.helpers.scripts import script

games: Any = script("enumerated_games")
script("enumerated_methods")
learning: Any = script("bakeoff_learning")
script("bakeoff_table")
bakeoff: Any = script("sampler_bakeoff")
CURVE = [(0, 1.0), (40, 2.0), (90, 4.0)]


def test_area_weighs_each_value_by_the_completions_until_the_next() -> None:
    assert learning.area_by_cost(CURVE, 100) == (40 * 1.0 + 50 * 2.0 + 10 * 4.0) / 100
    assert (
        learning.area_by_cost(CURVE, 60) == (40 * 1.0 + 20 * 2.0) / 60
    )  # the last step passed the budget


def test_reached_is_the_first_time_within_the_budget() -> None:
    assert bakeoff.reached(CURVE, 2.0, 100) == 40
    assert bakeoff.reached(CURVE, 4.0, 80) == 80
    assert bakeoff.reached(CURVE, 9.0, 100) == 100


@pytest.mark.parametrize(
    ("name", "cost"), [("independent", 48), ("resample", 96), ("branch", 48), ("tree", 48)]
)
def test_every_step_learns_from_48_completions(name: str, cost: int) -> None:
    """`resample` drops half of its episodes."""
    run = {"budget": 3 * cost, "rate": 0.3}
    curve, learned = bakeoff.learn(games.GAMES["steps"], bakeoff.SAMPLERS[name], 0, **run)
    assert [count for count, _ in curve] == [0, cost, 2 * cost, 3 * cost]
    assert learned == 48 / cost


def test_steps_without_signal_cost_completions_and_change_nothing() -> None:
    """A policy that always makes the same moves has no group with two different rewards."""

    class Certain(games.Game):
        def logits(self, seed: int, *, scale: float = 1.0) -> np.ndarray:
            found = super().logits(seed, scale=scale)
            found[..., 0] += 1000
            return found

    plain = games.GAMES["relay"]
    game = Certain(name="relay", about="", pay=plain.pay, rounds=2, actions=3)
    run = {"budget": 500, "rate": 0.3}
    curve, learned = bakeoff.learn(game, bakeoff.SAMPLERS["dynamic"], 0, **run)
    assert len(curve) == 1 and learned == 0.0
