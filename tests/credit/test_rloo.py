"""Tests of RLOO: golden advantages, and exactness by enumeration."""

import numpy as np
import pytest

from selfplay.credit.base import GroupBy
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.credit.rloo import RLOO
from tests.helpers.builders import advantages, episode, group, single_turn_group, turn
from tests.helpers.enumerated_game import EARLY_END, MIXED, TWO_ROUNDS, Game, one_round


def test_the_golden_group() -> None:
    found = advantages(RLOO().assign(single_turn_group(1, 0, 0, 0)))
    assert found == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3], abs=1e-12)


@pytest.mark.parametrize(
    ("game", "size"), [(MIXED, 2), (MIXED, 3), (TWO_ROUNDS, 2), (EARLY_END, 2), (EARLY_END, 3)]
)
def test_expects_exactly_the_policy_gradient(game: Game, size: int) -> None:
    logits = game.table(seed=1)
    found = game.expected(RLOO(group_by="agent"), logits, size=size)
    assert found == pytest.approx(game.exact(logits), abs=1e-12)
    assert np.linalg.norm(found) > 0.1


@pytest.mark.parametrize("group_by", ["agent", "role"])
def test_a_sibling_whose_value_is_unknown_is_no_baseline(group_by: GroupBy) -> None:
    unknown = episode(turn("solver_0", 0.0, trainable=False))
    paid, worse = episode(turn("solver_0", 1.0)), episode(turn("solver_0", 0.5))
    for credit in (RLOO(group_by=group_by), DrGRPO(group_by=group_by)):
        assert advantages(credit.assign([group(unknown, paid)])) == [0.0]
    found = advantages(RLOO(group_by=group_by).assign([group(unknown, paid, worse)]))
    assert found == pytest.approx([0.5, -0.5])


def test_a_role_whose_members_share_pay_is_biased() -> None:
    """Check the bias: within a role the baseline contains the return of the agent's partner."""
    shared = one_round([[(1.0, 1.0), (0.0, 0.0)], [(0.0, 0.0), (3.0, 3.0)]], names=("d_0", "d_1"))
    logits = shared.table(seed=2)
    exact = shared.exact(logits)
    # For n = 2 members and G = 2 the factor of the gradient is n (G - 1) / (n G - 1).
    found = shared.expected(RLOO(group_by="role"), logits, size=2)
    assert found == pytest.approx(exact * 2 / 3, abs=1e-12)
    opposed = one_round(
        [[(1.0, -1.0), (0.0, 0.0)], [(0.0, 0.0), (3.0, -3.0)]], names=("d_0", "d_1")
    )
    found = opposed.expected(RLOO(group_by="role"), logits, size=1)
    assert found == pytest.approx(2 * opposed.exact(logits), abs=1e-12)


def test_a_role_whose_members_are_independent_is_exact() -> None:
    """Check members whose pay depends on their own action alone, as for Absolute Zero's solvers."""
    alone = one_round([[(1.0, 1.0), (1.0, 4.0)], [(4.0, 1.0), (4.0, 4.0)]], names=("s_0", "s_1"))
    logits = alone.table(seed=3)
    found = alone.expected(RLOO(group_by="role"), logits, size=1)
    assert found == pytest.approx(alone.exact(logits), abs=1e-12)
