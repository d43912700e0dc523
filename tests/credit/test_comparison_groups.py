"""Tests of the comparison groups of credit methods, and of turns without a comparison."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from selfplay.credit import Credit
from selfplay.credit.advantage_alignment import AdvantageAlignment
from selfplay.credit.base import (
    FloatVector,
    centred,
    group_advantages,
    group_key,
    group_relative,
    learnable_turns,
    leave_one_out,
    own_pay,
    own_return,
    own_return_to_go,
    standardized,
)
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.credit.gae import GAE
from selfplay.credit.gigpo import GiGPO
from selfplay.credit.grpo import GRPO
from selfplay.credit.magrpo import MAGRPO
from selfplay.credit.mt_grpo import MTGRPO
from selfplay.credit.pass_at_k import PassAtK
from selfplay.credit.rae import RAE
from selfplay.credit.reinforce_pp import ReinforcePlusPlus
from selfplay.credit.rloo import RLOO
from selfplay.credit.team_return import rounds_of
from selfplay.credit.trr import TRR
from selfplay.types import Episode, Status
from tests.helpers.builders import advantages, episode, group, single_turn_group, turn


class Even:
    """A critic that predicts the same value for every state and learns nothing."""

    def values(self, states: Sequence[object]) -> list[float]:
        return [0.5] * len(states)

    def fit(self, states: Sequence[object], returns: Sequence[float]) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def whitened_gae() -> Credit:
    return GAE(critic=Even())


def plain_gae() -> Credit:
    return GAE(critic=Even(), whiten=False)


RELATIVE: list[Callable[[], Credit]] = [
    AdvantageAlignment,
    GRPO,
    DrGRPO,
    RLOO,
    MAGRPO,
    TRR,
    MTGRPO,
    GiGPO,
    PassAtK,
    ReinforcePlusPlus,
    partial(ReinforcePlusPlus, baseline="group"),
    whitened_gae,
]
"""Methods that compare the returns of a batch: equal returns have advantages of 0."""
METHODS: list[Callable[[], Credit]] = [*RELATIVE, RAE, plain_gae]


def test_within_a_prompt_solvers_of_different_proposals_are_not_compared() -> None:
    def sibling(program: int, *rewards: float) -> Episode:
        turns = [turn("proposer_0", 0.0, prompt_ids=(1,))]
        turns += [
            turn(f"solver_{n}", reward, prompt_ids=(2, program)) for n, reward in enumerate(rewards)
        ]
        return episode(*turns)

    siblings = [sibling(7, 1, 0), sibling(8, 5, 3)]
    by_prompt = advantages(DrGRPO(group_by="prompt").assign([group(*siblings)]))
    assert by_prompt == [0, 0.5, -0.5, 0, 1, -1]
    by_role = advantages(DrGRPO(group_by="role").assign([group(*siblings)]))
    assert by_role == [0, -1.25, -2.25, 0, 2.75, 0.75]
    by_agent = advantages(DrGRPO(group_by="agent").assign([group(*siblings)]))
    assert by_agent == [0, -2, -1.5, 0, 2, 1.5]


def test_within_a_prompt_agents_of_different_roles_are_not_compared() -> None:
    both = group(episode(turn("x_0", 1.0), turn("y_0", 0.0)))
    assert advantages(RLOO(group_by="prompt").assign([both])) == [0, 0]


def test_within_a_prompt_the_first_prompt_of_an_agent_counts_for_all_its_turns() -> None:
    siblings = [
        episode(turn("a_0"), turn("a_0", reward, prompt_ids=(1, 2, n)))
        for n, reward in ((3, 1.0), (4, 0.0))
    ]
    assert advantages(RLOO(group_by="prompt").assign([group(*siblings)])) == [1, 1, -1, -1]


def test_groups_are_never_compared_with_each_other() -> None:
    groups = [group(episode(turn("solver_0", 1)), name="a"), group(episode(turn("solver_0", 0)))]
    assert advantages(RLOO().assign(groups)) == [0, 0]


@pytest.mark.parametrize("method", RELATIVE)
def test_no_comparison_gives_zeros_and_never_nan(method: Callable[[], Credit]) -> None:
    credit = method()
    assert credit.assign([]) == []
    assert credit.assign([group()]) == []
    assert advantages(credit.assign(single_turn_group(3.0))) == [0]
    assert advantages(credit.assign(single_turn_group(0.1, 0.1, 0.1))) == [0, 0, 0]
    assert advantages(credit.assign(single_turn_group(0.1 + 0.2, 0.3, 0.3))) == [0, 0, 0]
    assert advantages(credit.assign(single_turn_group(1e-17, 0.0))) == [0, 0]
    failed = episode(turn("solver_0", math.inf), status=Status.FAILED)
    assert credit.assign([group(failed, failed)]) == []
    found = advantages(credit.assign([group(failed, episode(turn("solver_0", 1)), failed)]))
    assert found == [0]


@pytest.mark.parametrize("method", METHODS)
def test_no_learnable_turn_is_no_error_and_gives_no_nan(method: Callable[[], Credit]) -> None:
    credit = method()
    assert credit.assign([]) == []
    assert credit.assign([group(), group(episode(), name="b")]) == []
    failed = episode(turn("solver_0", math.nan), status=Status.FAILED)
    assert credit.assign([group(failed, failed)]) == []
    turns = [turn("solver_0", 1, loss_mask=(0,)), turn("solver_0", 2, completion_ids=())]
    silent = [episode(*turns), episode(turn("solver_0", 3))]
    found = advantages(credit.assign([group(*silent)]))
    assert found[:2] == [0, 0], "turns without tokens of the policy have no advantage"
    assert all(math.isfinite(value) for value in found)
    for rewards in ([7.0], [0.1] * 3, [1e-300, 0.0], [1e150, -1e150, 0.0]):
        found = advantages(credit.assign(single_turn_group(*rewards)))
        assert all(math.isfinite(value) for value in found), rewards


def advantage_with_sibling(sibling: Episode, reward: float = 1.0) -> float:
    """Return the advantage of a_0's turn; the sibling has no turn of a_0 to learn from."""
    siblings = group(episode(turn("a_0", reward)), sibling)
    return advantages(RLOO(group_by="agent").assign([siblings]))[0]


def test_an_agent_is_compared_with_its_pay_in_a_sibling_without_its_turn() -> None:
    assert advantage_with_sibling(episode(turn("b_0"))) == 1.0
    assert advantage_with_sibling(episode(turn("b_0"), other_pay={"a_0": ((0, 0.25),)})) == 0.75
    rounded = episode(turn("b_0"), other_pay={"a_0": ((0, 0.3),)})
    assert advantage_with_sibling(rounded, reward=0.1 + 0.2) == 0.0


def test_an_agent_is_not_compared_with_a_failed_episode() -> None:
    assert advantage_with_sibling(episode(turn("b_0"), status=Status.FAILED)) == 0.0


def test_an_agent_is_not_compared_with_untrained_turns_of_a_sibling() -> None:
    assert advantage_with_sibling(episode(turn("a_0", 5.0, trainable=False))) == 0.0


def test_an_agent_is_not_compared_with_a_branch_without_its_turn() -> None:
    assert advantage_with_sibling(episode(turn("b_0"), branch_of=0)) == 0.0


@pytest.mark.parametrize("method", [MTGRPO, partial(GiGPO, mode="mean_std_norm")])
def test_with_std_an_agent_is_not_compared_with_a_sibling_without_its_turn(
    method: Callable[..., Credit],
) -> None:
    siblings = group(episode(turn("a_0", 1.0)), episode(turn("b_0")))
    assert advantages(method(group_by="agent").assign([siblings])) == [0, 0]


@pytest.mark.parametrize("method", METHODS)
def test_samples_come_in_the_order_of_the_turns(method: Callable[[], Credit]) -> None:
    turns = [turn("a_0", 1), turn("b_0", 2), turn("a_0", 3)]
    episodes = [episode(*turns), episode(*turns, status=Status.FAILED), episode(*turns[:1])]
    samples = method().assign([group(*episodes)])
    assert [sample.turn for sample in samples] == [*turns, turns[0]]
    assert [sample.episode for sample in samples] == [0, 0, 0, 2]


@pytest.mark.parametrize("method", [GRPO, DrGRPO, RLOO])
def test_a_trajectory_counts_once_however_many_turns_it_took(
    method: Callable[[], Credit],
) -> None:
    long = episode(*[turn("solver_0", 1.0) for _ in range(4)])
    groups = [group(long, episode(turn("solver_0", 0.0)), episode(turn("solver_0", 2.0)))]
    found = advantages(method().assign(groups))
    once = advantages(method().assign(single_turn_group(4, 0, 2)))
    assert found == [once[0]] * 4 + once[1:]


def test_truncated_episodes_are_learned_from() -> None:
    cut = episode(turn("solver_0", -1), status=Status.TRUNCATED)
    assert advantages(RLOO().assign([group(cut, episode(turn("solver_0", 1)))])) == [-2, 2]


def test_a_round_begins_when_an_agent_moves_again() -> None:
    agents = ("a_0", "b_0", "a_0", "b_0", "b_0", "a_0", "c_0")
    assert rounds_of(episode(*map(turn, agents))) == [0, 0, 1, 1, 2, 2, 2]


def test_an_agents_own_return_to_go() -> None:
    turns = [turn("a_0", 1), turn("b_0", 8), turn("a_0", 2), turn("a_0", 4)]
    assert own_return_to_go(episode(*turns), discount=0.5) == [3, 8, 4, 4]
    assert own_return_to_go(episode(*turns)) == [7, 8, 6, 4]


def test_an_unknown_comparison_is_refused() -> None:
    with pytest.raises(ValueError, match="'team'"):
        GRPO(group_by="team").assign(single_turn_group(1, 0))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [*RELATIVE, plain_gae])
def test_a_method_without_state_refuses_the_state_of_another_method(
    method: Callable[[], Credit],
) -> None:
    credit = method()
    assert credit.state_dict() == {}
    credit.load_state_dict({})
    with pytest.raises(ValueError, match="keeps no state"):
        credit.load_state_dict({"averages": {}})


def test_turns_with_different_values_under_one_key_are_refused() -> None:
    siblings = group(*(episode(turn("a_0", pay), turn("a_0", 2.0)) for pay in (1.0, 0.0)))
    turns, key = learnable_turns([siblings], own_return_to_go), group_key("agent")
    with pytest.raises(ValueError, match=r'a_0 in one episode have the values 3.0 and 2.0.*"turn"'):
        group_relative(turns, key=key, advantage=centred)
    found = group_advantages(turns, key=key, advantage=centred, each="turn")
    assert found == pytest.approx([0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("advantage", [standardized, lambda values: centred(values)])
def test_unknown_functions_are_not_corrected_for_absent_siblings(
    advantage: Callable[[FloatVector], FloatVector],
) -> None:
    siblings = group(
        episode(turn("a_0", 1.0), turn("b_0", 1.0)),
        episode(turn("a_0", 0.0), turn("b_0", 0.0)),
        episode(turn("a_0", 0.0)),
    )
    turns, key = learnable_turns([siblings], own_return), group_key("agent")

    def compared(by: Callable[[FloatVector], FloatVector], *, correct: bool) -> list[float]:
        absent = (lambda credited, sibling: own_pay(sibling, "b_0")) if correct else None
        return group_advantages(turns, key=key, advantage=by, absent=absent)

    with pytest.raises(ValueError, match="pass one of these functions itself, or absent=None"):
        compared(advantage, correct=True)
    assert len(compared(advantage, correct=False)) == 5
    assert compared(centred, correct=True)[1] == pytest.approx(2 / 3)
    assert compared(centred, correct=False)[1] == pytest.approx(1 / 2)
    assert compared(leave_one_out, correct=True)[1] == pytest.approx(1)
