"""Tests of the signal of a group: its credit method gives an advantage other than 0."""

from typing import Any

import pytest

from selfplay.credit import Credit
from selfplay.credit.at_grpo import ATGRPO
from selfplay.credit.base import StatelessCredit
from selfplay.credit.by_role import ByRole
from selfplay.credit.grpo import GRPO
from selfplay.credit.magrpo import MAGRPO
from selfplay.credit.pass_at_k import PassAtK
from selfplay.credit.preference_pairs import PreferencePairs
from selfplay.credit.signal import has_signal
from selfplay.credit.team import TeamGRPO
from selfplay.errors import ConfigError
from selfplay.types import Episode, Group, Sample, Status
from tests.helpers.builders import advantages, episode, group, single_turn_group, turn


def planned(pay: float, **fields: Any) -> Episode:
    """Return an episode of a learning planner that is paid 0 and a frozen worker that is paid."""
    return episode(turn("planner_0"), turn("worker_0", pay, trainable=False), **fields)


SEATS = episode(turn("solver_0", 1.0), turn("solver_1", -1.0))
WORKER = group(planned(0.0), planned(1.0), planned(1.0), planned(0.0))
"""A group in which the team's returns differ, but the learning agent's returns do not."""
OPPOSED = group(SEATS, SEATS)
"""A group in which the agents of a role are paid differently, but alike in all siblings."""
SEATED = group(SEATS, SEATS)
BY_AGENT = {"default": GRPO(group_by="agent")}


@pytest.mark.parametrize(
    ("credit", "one", "expected"),
    [
        (TeamGRPO(), WORKER, True),
        (MAGRPO(), WORKER, True),
        (ATGRPO(returns="team"), WORKER, True),
        (ByRole(methods={"planner": TeamGRPO(), "default": GRPO()}), WORKER, True),
        (ByRole(methods={"worker": TeamGRPO(), "default": GRPO()}), WORKER, False),
        (GRPO(), WORKER, False),
        (TeamGRPO(), OPPOSED, False),
        (MAGRPO(), OPPOSED, False),
        (ATGRPO(returns="team"), OPPOSED, False),
        (ByRole(methods=BY_AGENT), OPPOSED, False),
        (PreferencePairs(), OPPOSED, False),
        (GRPO(group_by="agent"), OPPOSED, False),
        (GRPO(), OPPOSED, True),
        (PreferencePairs(), single_turn_group(1, 0)[0], True),
        (TeamGRPO(), group(planned(0.0), planned(1.0, status=Status.FAILED)), False),
        (TeamGRPO(), group(), False),
        (PassAtK(k=2), single_turn_group(1, 0, 0)[0], True),
        (PassAtK(k=2), single_turn_group(1, 1, 0)[0], False),
        (PassAtK(k=2), single_turn_group(0.2, 0.1, 0.3)[0], False),
    ],
)
def test_a_signal_is_a_nonzero_advantage(credit: Credit, one: Group, expected: bool) -> None:
    assert has_signal(credit, one) == expected
    assert any(advantages(credit.assign([one]))) == expected


def test_the_advantages_of_a_planner_whose_frozen_worker_is_paid() -> None:
    found = advantages(TeamGRPO().assign([WORKER]))
    assert found == pytest.approx([-0.866, 0.866, 0.866, -0.866], abs=1e-3)


def test_an_error_of_an_authors_method_is_one_line() -> None:
    class Odd(StatelessCredit):
        def assign(self, groups: object) -> list[Sample]:
            return []

        def has_signal(self, group: Group) -> bool:
            raise KeyError("x")

    with pytest.raises(ConfigError, match=r"^credit: Odd\.has_signal raised KeyError"):
        has_signal(Odd(), OPPOSED)


def test_a_method_may_leave_the_decision_to_the_default() -> None:
    class Undecided(StatelessCredit):
        team = True

        def assign(self, groups: object) -> list[Sample]:
            return []

        def has_signal(self, group: Group) -> bool | None:
            return True if group is SEATED else super().has_signal(group)

    assert has_signal(Undecided(), SEATED) and not has_signal(Undecided(), OPPOSED)
    assert has_signal(Undecided(), WORKER), "the team's returns differ"
    assert not Undecided().replays
