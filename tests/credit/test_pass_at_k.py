"""Tests of pass@k credit: golden advantages, and the gradient of pass@k by enumeration."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from selfplay.credit.pass_at_k import PassAtK
from tests.helpers.builders import advantages, single_turn_group
from tests.helpers.enumerated_game import MIXED

RIGHT = replace(MIXED, pay=lambda h: (float(MIXED.pay(h)[0] > 0.4), float(MIXED.pay(h)[1] > 0.4)))
"""A game that pays 1 where MIXED pays more than 0.4, and else 0."""


class Seats:
    """An arena with two solvers."""

    roles: Mapping[str, int] = {"judge": 1, "solver": 2}


def test_the_golden_groups() -> None:
    found = advantages(PassAtK().assign(single_turn_group(1, 1, 0, 0, 0, 0, 0, 0)))
    assert found == pytest.approx([0.5222330] * 2 + [-0.1740777] * 6, abs=1e-6)
    found = advantages(PassAtK().assign(single_turn_group(0, 0, 0, 1, 0, 0, 0, 0)))
    assert found == pytest.approx([-0.1428571] * 3 + [1] + [-0.1428571] * 4, abs=1e-6)


@pytest.mark.parametrize("std", [False, True])
def test_the_advantages_of_a_group_add_up_to_zero(std: bool) -> None:
    for right in range(9):
        found = advantages(
            PassAtK(k=3, std=std).assign(single_turn_group(*[1] * right, *[0] * (8 - right)))
        )
        assert sum(found) == pytest.approx(0, abs=1e-12)
        assert any(found) == (1 <= right <= 5), "three wrong answers make a failing subset"


def test_more_than_the_threshold_is_right() -> None:
    found = advantages(
        PassAtK(k=1, threshold=0.5, std=False).assign(single_turn_group(0.5, 7, 0.4, 0.6))
    )
    assert found == [-0.5, 0.5, -0.5, 0.5]


def test_groups_of_no_more_than_k_have_no_signal() -> None:
    for size in (1, 2, 3, 4):
        assert not any(advantages(PassAtK(k=4).assign(single_turn_group(1, *[0] * (size - 1)))))


def test_the_agents_of_a_role_are_answers_of_one_episode() -> None:
    arena = Seats
    assert PassAtK(k=4).min_group_size == 1, "the number of agents is not known"
    assert PassAtK(k=4, arena=arena).min_group_size == 3, "two episodes have 4 answers"
    assert PassAtK(k=2, arena=arena).min_group_size == 2
    assert PassAtK(k=1, arena=arena, group_by="prompt").min_group_size == 1
    assert PassAtK(k=4, arena=arena, group_by="agent").min_group_size == 5


def test_k_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="k is at least 1"):
        PassAtK(k=0)


@pytest.mark.parametrize(("k", "size"), [(1, 2), (1, 3), (2, 3)])
def test_without_std_the_expectation_is_a_multiple_of_the_gradient(k: int, size: int) -> None:
    logits = MIXED.table(seed=1)
    credit = PassAtK(k=k, threshold=0.4, group_by="agent", std=False)
    found = MIXED.expected(credit, logits, size=size)
    # d/dp of 1 - (1 - p)^k is k (1 - p)^(k - 1).
    p = RIGHT.values(logits)[:, -1]
    wanted = (k * (1 - p) ** (k - 1))[:, None, None] * RIGHT.exact(logits)
    assert found == pytest.approx(wanted * (size - k) / (size * k), rel=1e-10, abs=1e-14)
    assert np.linalg.norm(found) > 0.01


def test_with_std_three_answers_have_a_constant_factor() -> None:
    """Check the factor 3 / sqrt(2) of three answers with k = 1, for any probability of success.

    If one or two of the answers are right, the standard deviation is sqrt(2) / 3.
    """
    logits = MIXED.table(seed=1)
    credit = PassAtK(k=1, threshold=0.4, group_by="agent")
    found = MIXED.expected(credit, logits, size=3)
    wanted = RIGHT.exact(logits) * (2 / 3) * 3 / 2**0.5
    assert found == pytest.approx(wanted, rel=1e-10, abs=1e-14)
