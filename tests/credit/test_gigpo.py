"""Tests of GiGPO: groups of turns in one state by hand, each state's gradient by enumeration."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from selfplay.credit.gigpo import GiGPO
from selfplay.types import Turn
from tests.helpers.builders import advantages, episode, group, turn
from tests.helpers.enumerated_game import EARLY_END, TWO_ROUNDS, Game


def saw(text: str, reward: float, **fields: Any) -> Turn:
    return turn("agent_0", reward, messages=({"role": "user", "content": text},), **fields)


def test_episodes_and_turns_from_one_state_are_compared() -> None:
    first = episode(saw("door", 0), saw("key", 1))
    second = episode(saw("door", 0, prompt_ids=(9,)), saw("key", 0, prompt_ids=(9, 9)))
    found = advantages(GiGPO(discount=0.5).assign([group(first, second)]))
    # The returns of the episodes are 1 and 0, those at the door .5 and 0, those at the key 1 and 0.
    assert found == [0.5 + 0.25, 0.5 + 0.5, -0.75, -1]
    found = advantages(GiGPO(discount=0.5, weight=2.0).assign([group(first, second)]))
    assert found == [0.5 + 0.5, 0.5 + 1, -1, -1.5]
    scaled = advantages(GiGPO(mode="mean_std_norm").assign([group(first, second)]))
    assert scaled == pytest.approx([2**0.5, 2**0.5, -(2**0.5), -(2**0.5)], abs=1e-5)


def test_a_state_that_occurs_once_adds_nothing() -> None:
    first, second = episode(saw("door", 0), saw("key", 1)), episode(saw("window", 0))
    assert advantages(GiGPO().assign([group(first, second)])) == [0.5, 0.5, -0.5]


def test_a_state_is_not_compared_with_the_same_state_of_another_group() -> None:
    groups = [
        group(episode(saw("door", reward)), name=name) for name, reward in (("a", 1), ("b", 0))
    ]
    assert advantages(GiGPO().assign(groups)) == [0, 0]


def test_an_agent_is_compared_with_its_pay_in_a_sibling_without_its_turn() -> None:
    late = episode(turn("b_0", 0), other_pay={"a_0": ((0, 0.0),), "b_0": ()})
    siblings = group(episode(turn("a_0", 1), turn("b_0", 0)), late)
    found = advantages(GiGPO(group_by="agent", weight=0.0).assign([siblings]))
    assert found == [0.5, 0, 0]


def test_a_state_counts_once_for_each_visit() -> None:
    circle = episode(saw("door", 0), saw("door", 0), saw("door", 3))
    found = advantages(GiGPO(discount=0.5).assign([group(circle)]))
    # A lone episode has no sibling, but its returns at the door are .75, 1.5 and 3: mean 1.75.
    assert found == [-1, -0.25, 1.25]


def test_without_messages_the_prompt_is_the_state() -> None:
    first = episode(turn("agent_0", 2, prompt_ids=(1,)), turn("agent_0", 0, prompt_ids=(2,)))
    second = episode(turn("agent_0", 0, prompt_ids=(1,)), turn("agent_0", 0, prompt_ids=(3,)))
    assert advantages(GiGPO().assign([group(first, second)])) == [2, 1, -2, -1]


def test_messages_may_hold_parts_of_any_kind() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "\u00e9"}, {"image": None}]}
    made = [episode(turn("agent_0", r, messages=(dict(parts),))) for r in (1, 0)]
    assert advantages(GiGPO().assign([group(*made)])) == [1, -1]


@pytest.mark.parametrize("game", [TWO_ROUNDS, EARLY_END])
def test_states_keep_their_direction_and_frequent_states_weigh_more(game: Game) -> None:
    """Check the step term's factor p / 2 if the sibling visits a state with probability p."""
    logits = game.table(seed=1)
    found = game.expected(GiGPO(group_by="agent", discount=1.0, weight=3.0), logits, size=2)
    factors = (1 + 3 * game.visits(logits)) / 2
    wanted = game.exact(logits) * factors[None, :, None]
    assert found == pytest.approx(wanted, rel=1e-10, abs=1e-14)
    assert np.ptp(factors) > 0.5


def test_without_the_step_term_the_expectation_is_half_the_gradient() -> None:
    logits = EARLY_END.table(seed=1)
    found = EARLY_END.expected(GiGPO(group_by="agent", weight=0.0), logits, size=2)
    assert found == pytest.approx(EARLY_END.exact(logits) / 2, rel=1e-10, abs=1e-14)


def test_the_discount_counts_later_rewards_less_and_adds_bias() -> None:
    """Check that the step term is the gradient of the discounted return."""
    logits = TWO_ROUNDS.table(seed=1)
    later = replace(TWO_ROUNDS, pay=lambda h: scaled(TWO_ROUNDS.pay(h), 0.1 ** (len(h) - 1)))
    credit = GiGPO(group_by="agent", discount=0.1, weight=9.0)
    found = TWO_ROUNDS.expected(credit, logits, size=2)[:, -1]
    exact, discounted = TWO_ROUNDS.exact(logits)[:, -1], later.exact(logits)[:, -1]
    assert found == pytest.approx((exact + 9 * discounted) / 2, rel=1e-10, abs=1e-14)
    assert np.abs(discounted - exact).max() > 0.01


def test_with_std_the_scale_of_rewards_has_no_effect() -> None:
    """Check the bias: ten times the pay is ten times the policy gradient, but not with std."""
    logits = TWO_ROUNDS.table(seed=1)
    richer = replace(TWO_ROUNDS, pay=lambda h: scaled(TWO_ROUNDS.pay(h), 10))
    credit = GiGPO(group_by="agent", mode="mean_std_norm", epsilon=0.0)
    found = richer.expected(credit, logits, size=2)
    assert found == pytest.approx(TWO_ROUNDS.expected(credit, logits, size=2), rel=1e-9, abs=1e-12)
    assert np.linalg.norm(found) > 0.1


def scaled(paid: tuple[float, float], factor: float) -> tuple[float, float]:
    return (factor * paid[0], factor * paid[1])


@pytest.mark.parametrize("settings", [{"discount": 2.0}, {"mode": "std"}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        GiGPO(**settings)
