"""Tests of GRPO: golden advantages, and its bias by enumeration."""

import numpy as np
import pytest

from selfplay.credit.grpo import GRPO
from tests.helpers.builders import advantages, single_turn_group
from tests.helpers.enumerated_game import MIXED, cosine, one_round


def test_the_golden_group() -> None:
    found = advantages(GRPO().assign(single_turn_group(1, 0, 0, 0)))
    assert found == pytest.approx([1.499997, -0.499999, -0.499999, -0.499999], abs=1e-6)


def test_the_scale_and_the_shift_of_rewards_do_not_matter() -> None:
    plain = advantages(GRPO().assign(single_turn_group(1, 0, 2, 0)))
    moved = advantages(GRPO().assign(single_turn_group(13, 3, 23, 3)))
    assert moved == pytest.approx(plain, abs=1e-5)


def test_the_expectation_points_away_from_the_policy_gradient() -> None:
    logits = MIXED.table(seed=1)
    found = MIXED.expected(GRPO(group_by="agent"), logits, size=2)
    assert cosine(found, MIXED.exact(logits)) < 0.99


def test_rare_success_has_a_larger_factor() -> None:
    """Check that rewards of 0 and 1 keep the direction, but rare success has a larger factor.

    Groups of 2 or 3 are too small to show it: all those with both rewards have the same std.
    """
    game = one_round([[(1.0, 0.0), (1.0, 0.0)], [(0.0, 0.0), (0.0, 0.0)]])
    factors = []
    for logit in (0.0, 2.0):
        logits = game.table(seed=0)
        logits[0, -1] = logits.new_tensor([-logit, logit])
        found = game.expected(GRPO(group_by="agent"), logits, size=5)[0, -1]
        exact = game.exact(logits)[0, -1]
        assert cosine(found, exact) == pytest.approx(1.0)
        factors.append(np.linalg.norm(found) / np.linalg.norm(exact))
    assert factors[1] > 1.1 * factors[0]
