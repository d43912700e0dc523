"""Tests of Advantage Alignment: the second term by hand, and the gradient without it by
enumeration."""

from typing import Any

import pytest

from selfplay.credit.advantage_alignment import AdvantageAlignment
from selfplay.types import Episode
from tests.helpers.builders import advantages, episode, group, turn
from tests.helpers.enumerated_game import TWO_ROUNDS


def rounds(*paid: tuple[float, ...], **fields: Any) -> Episode:
    """Return an episode of simultaneous moves; `paid` has the rewards of x_0, y_0, ... per
    round."""
    agents = ("x_0", "y_0", "z_0")
    return episode(
        *(
            turn(agent, reward, stage=stage)
            for stage, rewards in enumerate(paid)
            for agent, reward in zip(agents, rewards, strict=False)
        ),
        **fields,
    )


FIRST = rounds((3, 3), (1, 0), (0, 4))
SECOND = rounds((1, 0), (1, 2), (2, 2))


def test_a_turn_is_also_paid_by_what_it_does_to_the_other() -> None:
    found = advantages(AdvantageAlignment(beta=2.0, discount=0.5).assign([group(FIRST, SECOND)]))
    # The returns to go of x are 3.5, 1, 0 and 2, 2, 2; those of y are 4, 2, 4 and 1.5, 3, 2. So the
    # advantages of x in the first episode are 1.5, -1, -2 and those of y 2.5, -1, 2; they have the
    # opposite signs in the second one. beta * discount is 1. The past sums of x are 0, 0.75, -0.125
    # and those of y 0, 1.25, 0.125, in the second episode with the opposite signs.
    wanted = [1.5, 2.5, -1 - 0.75, -1 - 1.25, -2 - 0.25, 2 - 0.25]
    wanted += [-1.5, -2.5, 1 - 0.75, 1 - 1.25, 2 - 0.25, -2 - 0.25]
    assert found == pytest.approx(wanted, abs=1e-12)


def test_the_metric_is_the_relative_size_of_the_second_term() -> None:
    credit = AdvantageAlignment(beta=2.0, discount=0.5)
    assert credit.metrics() == {"alignment": 0.0}
    credit.assign([group(FIRST, SECOND)])
    assert credit.metrics()["alignment"] == pytest.approx((0.75 + 1.25 + 0.25 + 0.25) / 10)
    credit.assign([group(FIRST, FIRST)])
    assert credit.metrics() == {"alignment": 0.0}


def test_the_others_of_three_agents_count_together() -> None:
    siblings = group(rounds((2, 0, 0), (0, 1, 3)), rounds((0, 0, 0), (0, 0, 0)))
    found = advantages(AdvantageAlignment(beta=0.5, discount=1.0).assign([siblings]))
    # The advantages are 2, 1, 3 and then 0, 1, 3. Past sums: 2, 1, 3.
    wanted = [2, 1, 3, 0.5 * 2 * (1 + 3), 1 + 0.5 * 1 * 3, 3 + 0.5 * 3 * 1]
    assert found[:6] == pytest.approx(wanted, abs=1e-12)


def test_an_agent_that_does_not_act_counts_with_its_last_turn() -> None:
    def alternating(*rewards: float) -> Episode:
        names = ("x_0", "y_0", "x_0", "y_0")
        return episode(*(turn(names[n], r, stage=n) for n, r in enumerate(rewards)))

    siblings = group(alternating(1, 0, 0, 4), alternating(0, 0, 0, 0))
    found = advantages(AdvantageAlignment(beta=1.0, discount=1.0).assign([siblings]))
    # The advantages are 1, 4, 0, 4. At the third turn y counts with the 4 of the second one; x
    # counts with 1 at the second turn, where y has no past, and with 0 at the last one.
    assert found == pytest.approx([1, 4, 0 + 1 * 4, 4 + 4 * 0, -1, -4, 4, -4], abs=1e-12)


def test_a_turn_without_a_stage_is_alone() -> None:
    made = [
        episode(*(turn(name, r) for name, r in rows)) for rows in (OLD, [(n, 0) for n, _ in OLD])
    ]
    found = advantages(AdvantageAlignment(beta=1.0, discount=1.0).assign([group(*made)]))
    assert found[:4] == pytest.approx([1, 4, 0 + 1 * 4, 4 + 4 * 0], abs=1e-12)


OLD = [("x_0", 1.0), ("y_0", 0.0), ("x_0", 0.0), ("y_0", 4.0)]


def test_turns_of_an_opponent_count_and_are_no_samples() -> None:
    def against(*paid: tuple[float, float]) -> Episode:
        return episode(
            *(
                turn(agent, reward, stage=stage, **fields)
                for stage, pair in enumerate(paid)
                for (agent, fields), reward in zip(SIDES, pair, strict=True)
            )
        )

    siblings = group(against((3, 3), (1, 0), (0, 4)), against((1, 0), (1, 2), (2, 2)))
    samples = AdvantageAlignment(beta=2.0, discount=0.5).assign([siblings])
    assert {sample.turn.agent for sample in samples} == {"x_0"}
    wanted = [1.5, -1 - 0.75, -2 - 0.25, -1.5, 1 - 0.75, 2 - 0.25]
    assert advantages(samples) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("trainable", [True, False])
def test_a_turn_of_an_opponent_that_no_sibling_has_is_compared_with_0(trainable: bool) -> None:
    def played(*paid: tuple[float, float]) -> Episode:
        return episode(
            *(
                turn(agent, reward, stage=stage, trainable=trainable or agent == "x_0")
                for stage, pair in enumerate(paid)
                for agent, reward in zip(("x_0", "y_0"), pair, strict=True)
            )
        )

    siblings = group(played((1, 0), (2, 3)), played((0, 0)))
    samples = AdvantageAlignment(beta=1.0, discount=1.0).assign([siblings])
    found = [sample.advantage for sample in samples if sample.turn.agent == "x_0"]
    # The advantages of x are 3 and 2 (compared with 0), that of y in the second round is 3.
    assert found == pytest.approx([3, 2 + 3 * 3, -3], abs=1e-12)


def test_a_group_of_equal_totals_at_different_times_has_a_signal() -> None:
    siblings = group(rounds((1, 0), (0, 0)), rounds((0, 0), (1, 0)))
    assert AdvantageAlignment(discount=0.5).has_signal(siblings)
    assert not AdvantageAlignment().has_signal(group(FIRST, FIRST))


SIDES: list[tuple[str, dict[str, Any]]] = [
    ("x_0", {}),
    ("y_0", {"policy": "old", "trainable": False}),
]


def test_a_tool_call_counts_once_in_the_past() -> None:
    def calling(reward: float) -> Episode:
        return episode(
            turn("x_0", 0, stage=0, final=False),
            turn("x_0", reward, stage=0),
            turn("y_0", reward, stage=0),
            turn("x_0", 0, stage=1),
            turn("y_0", reward, stage=1),
        )

    found = advantages(
        AdvantageAlignment(beta=1.0, discount=1.0).assign([group(calling(1), calling(0))])
    )
    # The call and its answer have the advantage 1; the past sum of x at its last turn is 1, not 2.
    assert found[:5] == pytest.approx([1, 1, 2, 0 + 1 * 1, 1 + 2 * 0], abs=1e-12)


def test_a_turn_that_no_sibling_has_is_compared_with_0() -> None:
    siblings = group(rounds((0, 0), (2, 2)), rounds((0, 0)))
    found = advantages(AdvantageAlignment(beta=0.0, discount=1.0).assign([siblings]))
    assert found == pytest.approx([2, 2, 2, 2, -2, -2], abs=1e-12)


def test_without_the_second_term_the_expectation_is_the_policy_gradient() -> None:
    logits = TWO_ROUNDS.table(seed=1)
    found = TWO_ROUNDS.expected(AdvantageAlignment(beta=0.0, discount=1.0), logits, size=2)
    assert found == pytest.approx(TWO_ROUNDS.exact(logits), rel=1e-10, abs=1e-14)


def test_a_wrong_discount_is_refused() -> None:
    with pytest.raises(ValueError, match=r"discount lies in \[0, 1\], not 1.5"):
        AdvantageAlignment(discount=1.5)
