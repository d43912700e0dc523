"""Tests of the rewards of Absolute Zero."""

import math

import pytest

from arenas.absolute_zero.rewards import composite, learnability


def test_learnability_is_the_fraction_that_is_unsolved() -> None:
    found = [learnability(solved / 8) for solved in range(9)]
    assert found == [0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0]


def test_a_degenerate_reward_is_paid_for_solve_rates_of_0_and_1() -> None:
    assert [learnability(rate, degenerate=-0.5) for rate in (0, 0.5, 1)] == [-0.5, 0.5, -0.5]


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan, math.inf])
def test_a_solve_rate_lies_between_0_and_1(rate: float) -> None:
    with pytest.raises(ValueError, match="solve rate"):
        learnability(rate)


def test_the_composite_reward() -> None:
    assert composite(1.0) == 1.0
    assert composite(0.3) == 0.3
    assert composite(0.0) == -0.5
    assert composite(None) == -1.0
    assert composite(0.0, wrong=-0.1) == -0.1
    assert composite(None, malformed=-2.0) == -2.0
