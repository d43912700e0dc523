"""Tests of team credit: all turns of an episode have its advantage, for any number of agents."""

import numpy as np
import pytest

from selfplay.credit.dr_grpo import DrGRPO
from selfplay.credit.grpo import GRPO
from selfplay.credit.magrpo import MAGRPO
from selfplay.credit.team import TeamGRPO
from selfplay.types import Episode, Status
from tests.helpers.builders import advantages, episode, group, single_turn_group, turn
from tests.helpers.enumerated_game import MIXED, TWO_ROUNDS, Game, cosine
from tests.helpers.enumerated_team import CALLING, TEAM


def played(reward: float, *, workers: int) -> Episode:
    """Return an episode in which a planner calls workers and answers; all are paid the same."""
    called = [turn(f"worker_{n}", reward) for n in range(workers)]
    first = [turn("planner_0")] if workers else []
    return episode(*first, *called, turn("planner_0", reward))


def test_the_golden_group() -> None:
    centred = advantages(TeamGRPO(std=False).assign(single_turn_group(1, 0, 0, 0)))
    assert centred == pytest.approx([0.75, -0.25, -0.25, -0.25], abs=1e-12)
    scaled = advantages(TeamGRPO().assign(single_turn_group(1, 0, 0, 0)))
    assert scaled == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_an_episode_counts_once_however_many_workers_it_called() -> None:
    # Episodes with 3, 0, 1 workers have the returns 1, 0, 0.5: mean 0.5, standard deviation 0.5.
    siblings = group(played(1, workers=3), played(0, workers=0), played(0.5, workers=1))
    centred = advantages(TeamGRPO(std=False).assign([siblings]))
    assert centred == [0.5] * 5 + [-0.5] + [0.0] * 3
    scaled = advantages(TeamGRPO().assign([siblings]))
    assert scaled == pytest.approx([1.0] * 5 + [-1.0] + [0.0] * 3, abs=1e-5)


def test_groups_are_separate_and_the_prompt_does_not_matter() -> None:
    first = group(played(1, workers=1), played(0, workers=0), name="a")
    second = group(played(5, workers=0), played(3, workers=2), name="b")
    found = advantages(TeamGRPO(std=False).assign([first, second]))
    assert found == [0.5] * 3 + [-0.5] + [1.0] + [-1.0] * 4


def test_a_worker_that_no_sibling_called_is_compared_with_the_siblings_outcome() -> None:
    # Both episodes are right, with and without a worker: the call has no value.
    siblings = [group(played(1, workers=1), played(1, workers=0))]
    assert advantages(TeamGRPO(std=False).assign(siblings)) == [0.0] * 4
    # Comparisons by agent have no baseline for the worker, or no signal.
    assert advantages(DrGRPO(group_by="agent").assign(siblings)) == [0.0, 0.5, 0.0, 0.0]
    wrong = [group(played(1, workers=1), played(0, workers=0))]
    assert advantages(GRPO(group_by="agent").assign(wrong))[1] == 0.0
    assert advantages(TeamGRPO().assign(wrong))[1] == pytest.approx(0.7071, abs=1e-4)


def test_unequal_pay_counts_by_its_mean_and_agents_without_a_turn_count() -> None:
    one = episode(turn("planner_0", 2), turn("worker_0", 0))  # 1
    late = {"planner_0": (), "worker_0": ((0, 3.0),)}
    two = episode(turn("planner_0", 1), other_pay=late)  # (1 + 3) / 2 = 2
    assert advantages(TeamGRPO(std=False).assign([group(one, two)])) == [-0.5, -0.5, 0.5]


def test_failed_episodes_and_frozen_policies_are_left_out() -> None:
    failed = episode(turn("planner_0", 9), status=Status.FAILED)
    frozen = episode(turn("planner_0", 1), turn("worker_0", 1, trainable=False))
    found = TeamGRPO(std=False).assign([group(failed, frozen, played(0, workers=0))])
    assert [(s.turn.agent, s.advantage) for s in found] == [("planner_0", 0.5), ("planner_0", -0.5)]
    assert [s.episode for s in found] == [1, 2]
    assert TeamGRPO().assign([group(failed)]) == []
    assert TeamGRPO().min_group_size == 2


@pytest.mark.parametrize("size", [2, 3])
def test_late_agents_expect_a_multiple_of_the_teams_gradient(size: int) -> None:
    logits = CALLING.table(seed=1)
    called = CALLING.taking_part(logits)
    assert called[0] == pytest.approx(1.0) and 0.1 < called[2] < called[1] < 0.9
    exact = CALLING.shared(logits)
    found = CALLING.expected(TeamGRPO(std=False), logits, size=size)
    assert found == pytest.approx(exact * (size - 1) / size, abs=1e-12)
    assert np.abs(exact[1:]).max() > 0.01, "workers have a gradient"


def test_with_std_the_direction_is_not_exact() -> None:
    logits = CALLING.table(seed=1)
    scaled = CALLING.expected(TeamGRPO(), logits, size=3)
    assert 0.5 < cosine(scaled, CALLING.shared(logits)) < 0.998


@pytest.mark.parametrize("size", [2, 3])
def test_absent_agents_expect_a_multiple_of_the_teams_gradient(size: int) -> None:
    logits = TEAM.table(seed=1)
    found = TEAM.expected(TeamGRPO(std=False), logits, size=size)
    assert found == pytest.approx(TEAM.team(logits) * (size - 1) / size, abs=1e-12)
    assert found == pytest.approx(TEAM.expected(MAGRPO(), logits, size=size), abs=1e-12)


@pytest.mark.parametrize(("game", "size"), [(MIXED, 2), (TWO_ROUNDS, 2)])
def test_fixed_agents_expect_a_multiple_of_the_teams_gradient(game: Game, size: int) -> None:
    logits = game.table(seed=1)
    found = game.expected(TeamGRPO(std=False), logits, size=size)
    assert found == pytest.approx(game.exact(logits, team=True) * (size - 1) / size, abs=1e-12)
