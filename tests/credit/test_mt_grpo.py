"""Tests of MT-GRPO: turn rewards and outcomes by hand, and the gradient's factor by enumeration."""

from dataclasses import replace

import pytest

from selfplay.credit.mt_grpo import MTGRPO, before_outcome, outcome
from selfplay.types import Episode
from tests.helpers.builders import advantages, episode, group, turn
from tests.helpers.enumerated_game import TWO_ROUNDS


def play(*rewards: float) -> Episode:
    return episode(*(turn("agent_0", reward) for reward in rewards))


def test_the_outcome_is_the_last_reward_of_an_agent() -> None:
    made = episode(turn("a_0", 1), turn("b_0", 7), turn("a_0", 2), turn("a_0", 4))
    assert outcome(made) == [4, 7, 4, 4]
    assert before_outcome(made) == [3, 0, 2, 0]


def test_earlier_turns_get_both_advantages_and_the_last_turn_one() -> None:
    siblings = group(play(1, 0), play(0, 1), play(0, 0.5))
    found = advantages(MTGRPO(weight=2.0, std=False).assign([siblings]))
    # The centred outcomes 0, 1, .5 are -.5, .5, 0; the centred turn rewards 1, 0, 0 are 2/3, -1/3,
    # -1/3.
    wanted = [-0.5 + 4 / 3, -0.5, 0.5 - 2 / 3, 0.5, -2 / 3, 0]
    assert found == pytest.approx(wanted, abs=1e-12)
    scaled = advantages(MTGRPO().assign([siblings]))
    # Divided by the standard deviations .5 and .5773503 they are -1, 1, 0 and 1.1547005,
    # -.5773503, -.5773503.
    wanted = [0.1547005, -1, 0.4226497, 1, -0.5773503, 0]
    assert scaled == pytest.approx(wanted, abs=1e-5)


def test_a_sibling_without_further_turns_has_turn_reward_0() -> None:
    found = advantages(MTGRPO(std=False).assign([group(play(1, 0), play(3))]))
    # The outcomes are 0 and 3. Turn 0 has the turn reward 1 in the longer episode, 0 in the other.
    assert found == pytest.approx([-1.5 + 0.5, -1.5, 1.5 - 0.5], abs=1e-12)


def test_a_turn_that_no_sibling_reached_is_compared_with_0() -> None:
    siblings = group(play(0, 2, 0), play(0))
    found = advantages(MTGRPO(group_by="agent", std=False).assign([siblings]))
    # The outcomes are equal. The turn reward 2 is compared with 0: turn 1 and the turn before it
    # have the advantage 1.
    assert found == [1, 1, 0, -1]


def test_agents_of_one_turn_are_compared_by_the_outcome_alone() -> None:
    found = advantages(MTGRPO(std=False).assign([group(play(1), play(0))]))
    assert found == [0.5, -0.5]


def test_without_std_the_expectation_is_half_the_policy_gradient() -> None:
    logits = TWO_ROUNDS.table(seed=1)
    found = TWO_ROUNDS.expected(MTGRPO(group_by="agent", std=False), logits, size=2)
    assert found == pytest.approx(TWO_ROUNDS.exact(logits) / 2, rel=1e-10, abs=1e-14)


def test_with_std_the_scale_of_rewards_has_no_effect() -> None:
    """Check the bias: ten times the pay is ten times the policy gradient, but not with std.

    A pay of 50 in each first round, as for a tool that always runs, has no effect either.
    """
    logits = TWO_ROUNDS.table(seed=1)
    richer = replace(TWO_ROUNDS, pay=lambda h: scaled(TWO_ROUNDS.pay(h), 10, 50 * (len(h) == 1)))
    credit = MTGRPO(group_by="agent", epsilon=0.0)
    found = richer.expected(credit, logits, size=2)
    assert found == pytest.approx(TWO_ROUNDS.expected(credit, logits, size=2), rel=1e-9, abs=1e-12)
    exact = TWO_ROUNDS.exact(logits)
    assert richer.exact(logits) == pytest.approx(10 * exact, rel=1e-9, abs=1e-12)


def scaled(paid: tuple[float, float], factor: float, more: float) -> tuple[float, float]:
    return (factor * paid[0] + more, factor * paid[1] + more)
