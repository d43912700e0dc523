"""Tests of REINFORCE++: whitening over tokens by hand, and its bias by enumeration."""

import pytest

from selfplay.credit.reinforce_pp import ReinforcePlusPlus
from tests.helpers.builders import advantages, episode, group, single_turn_group, turn
from tests.helpers.enumerated_game import MIXED, cosine, one_round


def test_long_answers_weigh_more_in_the_mean_and_the_std() -> None:
    # The values 1, 1, 1, 0 of the tokens have the mean .75 and the standard deviation .4330127.
    long = episode(turn("solver_0", 1, completion_ids=(4, 5, 6)))
    found = advantages(ReinforcePlusPlus().assign([group(long, episode(turn("solver_0", 0)))]))
    assert found == pytest.approx([0.5773503, -1.7320508], abs=1e-5)


def test_the_batch_is_whitened_and_a_baseline_is_optional() -> None:
    groups = [
        *single_turn_group(1, 0),
        group(*(episode(turn("solver_0", r)) for r in (11, 10)), name="b"),
    ]
    # The mean is 5.5, the squared deviations are 20.25 and 30.25 (two of each), and the standard
    # deviation is 5.0249378.
    plain = advantages(ReinforcePlusPlus().assign(groups))
    assert plain == pytest.approx([-0.8955334, -1.0945408, 1.0945408, 0.8955334], abs=1e-5)
    centred = advantages(ReinforcePlusPlus(baseline="group").assign(groups))
    assert centred == pytest.approx([1, -1, 1, -1], abs=1e-5)


def test_policies_are_whitened_separately() -> None:
    mixed = episode(turn("a_0", 3, policy="left"), turn("b_0", 70, policy="right"))
    other = episode(turn("a_0", 1, policy="left"), turn("b_0", 50, policy="right"))
    found = advantages(ReinforcePlusPlus().assign([group(mixed, other)]))
    assert found == pytest.approx([1, 1, -1, -1], abs=1e-5)


def test_tokens_that_the_policy_did_not_choose_are_ignored() -> None:
    # Two of three tokens are the policy's own. The values 1, 1, 0 have the mean 2/3 and the
    # standard deviation .4714045.
    partly = episode(turn("solver_0", 1, completion_ids=(4, 5, 6), loss_mask=(1, 0, 1)))
    never = episode(turn("solver_0", 1000, loss_mask=(0,)))
    groups = [group(partly, episode(turn("solver_0", 0)), never)]
    found = advantages(ReinforcePlusPlus().assign(groups))
    assert found == pytest.approx([0.7071068, -1.4142136, 0], abs=1e-5)


def test_a_policy_that_chose_no_token_has_no_signal() -> None:
    forced = [episode(turn("a_0", reward, loss_mask=(0,))) for reward in (1, 0)]
    assert advantages(ReinforcePlusPlus().assign([group(*forced)])) == [0, 0]


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(ValueError, match="baseline is one of none, group, not 'mean'"):
        ReinforcePlusPlus(baseline="mean")  # type: ignore[arg-type]


def test_the_scale_of_the_rewards_is_lost() -> None:
    """Check the bias for rewards of 0 or 10: a factor that depends on the rewards.

    One agent gives two answers; its partner is paid 0. The answers differ with probability
    2 p (1 - p). Then the centred batch is 5, -5, 0, 0 with the standard deviation 5 / sqrt(2), and
    the advantages are sqrt(2) for any pay. Those of RLOO would be 10.
    """
    game = one_round([[(10.0, 0.0), (10.0, 0.0)], [(0.0, 0.0), (0.0, 0.0)]])
    logits = game.table(seed=1)
    credit = ReinforcePlusPlus(baseline="group", group_by="agent", epsilon=0.0)
    found = game.expected(credit, logits, size=2)
    assert found == pytest.approx(game.exact(logits) * 2**0.5 / 10, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("baseline", ["none", "group"])
def test_the_expectation_points_away_from_the_policy_gradient(baseline: str) -> None:
    logits = MIXED.table(seed=1)
    credit = ReinforcePlusPlus(baseline=baseline, group_by="agent")  # type: ignore[arg-type]
    assert cosine(MIXED.expected(credit, logits, size=2), MIXED.exact(logits)) < 0.99
