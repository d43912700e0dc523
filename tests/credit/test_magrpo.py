"""Tests of MAGRPO: returns to go by hand, and the factor of its gradient by enumeration."""

import pytest

from selfplay.credit.magrpo import MAGRPO
from selfplay.credit.team_return import rounds_of, team_return_to_go
from tests.helpers.builders import advantages, episode, group, single_turn_group, turn
from tests.helpers.enumerated_game import MIXED, TWO_ROUNDS, Game


def test_the_golden_group() -> None:
    found = advantages(MAGRPO().assign(single_turn_group(1, 0, 0, 0)))
    assert found == pytest.approx([0.75, -0.25, -0.25, -0.25], abs=1e-12)


@pytest.mark.parametrize(("game", "size"), [(MIXED, 2), (MIXED, 3), (TWO_ROUNDS, 2)])
def test_the_expectation_is_a_multiple_of_the_teams_gradient(game: Game, size: int) -> None:
    logits = game.table(seed=1)
    found = game.expected(MAGRPO(), logits, size=size)
    assert found == pytest.approx(game.exact(logits, team=True) * (size - 1) / size, abs=1e-12)


def test_discounted_returns_to_go_over_rounds() -> None:
    # Three rounds have the shared rewards 1, 2, 4: 1 + .5 (2 + .5 * 4) = 3, 2 + .5 * 4 = 4, 4.
    turns = [turn(agent, reward) for reward in (1, 2, 4) for agent in ("a_0", "b_0")]
    assert team_return_to_go(episode(*turns), discount=0.5) == [3, 3, 4, 4, 4, 4]
    # Different rewards count by their mean over the two agents.
    turns = [turn("a_0", 2), turn("b_0", 0), turn("a_0", 0), turn("b_0", 4)]
    assert team_return_to_go(episode(*turns), discount=0.5) == [2, 2, 2, 2]


def test_advantages_compare_equal_rounds() -> None:
    first = episode(turn("a_0", 1), turn("b_0", 1), turn("a_0", 2), turn("b_0", 2))
    second = episode(turn("a_0", 0), turn("b_0", 0), turn("a_0", 1), turn("b_0", 1))
    found = advantages(MAGRPO(discount=0.5).assign([group(first, second)]))
    # Round 0 compares 2 with .5, round 1 compares 2 with 1.
    assert found == [0.75, 0.75, 0.5, 0.5, -0.75, -0.75, -0.5, -0.5]
    scaled = advantages(MAGRPO(discount=0.5, std=True).assign([group(first, second)]))
    assert scaled == pytest.approx([0.7071, 0.7071, 0.7071, 0.7071] + [-0.7071] * 4, abs=1e-4)


def test_a_shared_reward_counts_once_however_often_each_agent_acted() -> None:
    # a moves three times, b once at the start or at the end; both are paid 1 when all is over.
    b_first = episode(turn("b_0", 1), turn("a_0"), turn("a_0"), turn("a_0", 1))
    b_last = episode(turn("a_0"), turn("a_0"), turn("a_0", 1), turn("b_0", 1))
    assert team_return_to_go(b_first) == [1, 1, 1, 1]
    assert team_return_to_go(b_last) == [1, 1, 1, 1]


def test_an_earlier_turn_is_credited_with_a_later_partners_pay() -> None:
    # b's only turn comes last: what it earns depends on all that a did before.
    found = team_return_to_go(episode(turn("a_0"), turn("a_0"), turn("a_0"), turn("b_0", 6)))
    assert found == [3, 3, 3, 3]


def test_pay_before_a_round_is_not_in_its_return_to_go() -> None:
    turns = [turn("a_0", 5), turn("b_0", 5), turn("a_0", 1), turn("b_0", 1)]
    assert team_return_to_go(episode(*turns)) == [6, 6, 1, 1]


def test_a_round_of_one_sibling_alone_is_compared_with_no_later_pay() -> None:
    # The return 9 is compared with 0, the later pay of the ended sibling. G = 2 halves the result.
    long = episode(turn("a_0", 0), turn("a_0", 9))
    found = advantages(MAGRPO().assign([group(long, episode(turn("a_0", 3)))]))
    assert found == [3.0, 4.5, -3.0]
    assert advantages(MAGRPO().assign([group(long)])) == [0.0, 0.0]


def test_pay_counts_when_it_was_paid_and_for_agents_without_a_turn() -> None:
    # Stage 0: a moves, c is paid 3. Stage 1: b moves, a is paid 6. c never moves; d is not paid.
    other_pay = {"a_0": ((1, 6.0),), "b_0": (), "c_0": ((-1, 5.0), (0, 3.0)), "d_0": ()}
    turns = [turn("a_0", 2 + 6, stage=0), turn("b_0", 1, stage=1), turn("a_0", 4, stage=2)]
    played = episode(*turns, other_pay=other_pay)
    assert team_return_to_go(played) == [(2 + 3 + 1 + 6 + 4) / 4, (1 + 6 + 4) / 4, 1.0]
    # The second round begins with a's second move.
    assert team_return_to_go(played, discount=0.5) == [(2 + 3 + 1 + 6 + 2) / 4, (7 + 2) / 4, 1.0]


def test_agents_of_one_stage_are_of_one_round() -> None:
    turns = [turn("a_0", stage=0), turn("b_0", stage=1), turn("a_0", stage=1)]
    assert rounds_of(episode(*turns)) == [0, 1, 1]


def test_without_a_record_of_times_pay_counts_as_late_as_possible() -> None:
    # a's 8 may have been paid in stage 1, in which only b moved.
    turns = [turn("a_0", 8, stage=0), turn("b_0", 0, stage=1), turn("a_0", 2, stage=2)]
    assert team_return_to_go(episode(*turns)) == [5.0, 5.0, 1.0]


def test_a_discount_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="discount must be in"):
        MAGRPO(discount=1.5)
