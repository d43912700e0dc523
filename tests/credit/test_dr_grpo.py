"""Tests of Dr. GRPO: golden advantages, and the factor of its expected gradient by enumeration."""

import pytest

from selfplay.credit.dr_grpo import DrGRPO
from tests.helpers.builders import advantages, single_turn_group
from tests.helpers.enumerated_game import EARLY_END, MIXED, TWO_ROUNDS, Game


def test_the_golden_group() -> None:
    found = advantages(DrGRPO().assign(single_turn_group(1, 0, 0, 0)))
    assert found == pytest.approx([0.75, -0.25, -0.25, -0.25], abs=1e-12)


@pytest.mark.parametrize(
    ("game", "size"), [(MIXED, 2), (MIXED, 3), (TWO_ROUNDS, 2), (EARLY_END, 3)]
)
def test_the_expectation_is_a_multiple_of_the_policy_gradient(game: Game, size: int) -> None:
    logits = game.table(seed=1)
    found = game.expected(DrGRPO(group_by="agent"), logits, size=size)
    assert found == pytest.approx(game.exact(logits) * (size - 1) / size, abs=1e-12)
