"""Tests of the messages about steps without a learning signal and about unknown metrics."""

from dataclasses import replace

import pytest

from selfplay.credit import Credit
from selfplay.credit.at_grpo import ATGRPO
from selfplay.credit.base import GroupBy
from selfplay.credit.by_role import ByRole
from selfplay.credit.learning_progress import LearningProgress
from selfplay.credit.magrpo import MAGRPO
from selfplay.credit.missing_signals import (
    Unfinished,
    UnpaidPolicies,
    ZeroAdvantages,
    opposed_roles,
    unbranched,
    unmeasured,
    zero_fraction,
    zero_sum,
)
from selfplay.credit.pass_at_k import PassAtK
from selfplay.credit.rejection_sampling import RejectionSampling
from selfplay.credit.rloo import RLOO
from selfplay.sampler.adaptive import Adaptive
from selfplay.sampler.independent import Independent
from selfplay.sampler.resample import Resample
from selfplay.sampler.tree import Branch
from selfplay.types import Episode, Group, Status, StopReason
from tests.helpers.builders import episode, group, sample, single_turn_group, turn


def match(paid: float) -> Group:
    first, second = turn("player_0", paid), turn("player_1", 0.1 - paid - 0.1)
    return group(episode(first, second), episode(second, first))


def line(credit: Credit, groups: list[Group], step: int = 1) -> str | None:
    return ZeroAdvantages(credit).line(step, groups, credit.assign(groups))


@pytest.mark.parametrize(
    "credit", [MAGRPO(), ATGRPO(returns="team"), ByRole(methods={"default": MAGRPO()})]
)
def test_a_team_credit_in_a_zero_sum_game_is_named(credit: Credit) -> None:
    message = line(credit, [match(0.3), match(1.0)])
    assert message and "step 1: all 8 advantages are 0" in message
    assert "zero-sum" in message and "credit=rloo" in message


def hunt(wolf_wins: bool, villagers: int = 4) -> Episode:
    paid = 1.0 if wolf_wins else -1.0
    sides = [turn("wolf_0", paid), *(turn(f"villager_{n}", -paid) for n in range(villagers))]
    return episode(*sides)


def test_a_team_credit_that_rewards_a_side_for_losing_is_named() -> None:
    games = [group(hunt(False), hunt(True)) for _ in range(4)]
    (message,) = opposed_roles(MAGRPO(), games)
    assert "MAGRPO judges turns by the mean return of all agents" in message
    assert "role 'wolf' are paid less where this mean is higher (correlation -1.00 in 8" in message
    nested = ByRole(methods={"wolf": RLOO(), "default": MAGRPO()})
    assert list(opposed_roles(nested, games)) == []  # its own return judges the wolf
    assert list(opposed_roles(RLOO(), games)) == []
    assert list(opposed_roles(MAGRPO(), games[:3])) == []  # too few to tell
    friends = [group(episode(turn("a_0", x), turn("b_0", 2 * x))) for x in range(8)]
    assert list(opposed_roles(MAGRPO(), friends)) == []


def test_other_reasons_are_not_called_a_zero_sum_game() -> None:
    message = line(MAGRPO(), single_turn_group(1.0, 1.0))
    assert message and "all 2 advantages are 0" in message and "zero-sum" not in message
    message = line(RLOO(group_by="agent"), single_turn_group(0.5, 0.5))
    assert message and "returns that credit compares are equal" in message
    for credit in (MAGRPO(), RLOO(group_by="agent")):
        message = line(credit, single_turn_group(0.0, 0.0))
        assert message and message.endswith("the return of every agent is 0 in every episode")
    message = line(RLOO(group_by="role"), single_turn_group(0.5))
    assert message and message.endswith("set sampler.group_size to 2 or more")
    assert (
        message
        and "each group has one episode, and its agents are compared with no other" in message
    )
    team = [group(episode(turn("solver_0", 0.5), turn("solver_1", 0.5)))]
    cases: list[tuple[GroupBy, bool]] = [("agent", True), ("role", False), ("prompt", False)]
    for by, alone in cases:
        message = line(RLOO(group_by=by), team)
        assert message and ("one episode" in message) == alone
    endless = [
        replace(each, status=Status.TRUNCATED) for each in single_turn_group(0.0, 0.0)[0].episodes
    ]
    message = line(MAGRPO(), [group(*endless)])
    assert message and "every episode was cut off at a limit (rollout.max_turns" in message
    assert line(RLOO(), []) == (
        "step 1: credit made no samples of a policy that learns in this step, so none does"
    )
    assert line(RLOO(), single_turn_group(1.0, 0.0)) is None


def test_pass_at_k_names_its_k() -> None:
    for credit in (PassAtK(k=4), ByRole(methods={"solver": PassAtK(k=4), "default": RLOO()})):
        message = line(credit, single_turn_group(1.0, 0.0, 0.0, 0.0))
        assert message and "more than k=4 answers" in message and "are equal" not in message


@pytest.mark.parametrize("sampler", [Adaptive(), Resample()])
def test_a_sampler_by_success_in_a_zero_sum_game_is_named(sampler: object) -> None:
    (message,) = zero_sum(sampler, [match(0.3), match(1.0)])
    assert message.startswith(f"sampler {type(sampler).__name__}: ") and "zero-sum" in message
    assert "sampler=independent" in message
    assert list(zero_sum(sampler, [match(0.3), *single_turn_group(1.0)])) == []
    assert list(zero_sum(sampler, single_turn_group(0.0))) == [], (
        "a game without pay is not known to be zero-sum"
    )
    assert list(zero_sum(sampler, [])) == list(zero_sum(Independent(), [match(1.0)])) == []


def test_a_step_whose_episodes_all_failed_has_its_own_message() -> None:
    failed = [
        group(*(replace(each, status=Status.FAILED, error="no") for each in played.episodes))
        for played in (single_turn_group(1.0, 0.0)[0], single_turn_group(1.0, 0.0)[0])
    ]
    message = line(RLOO(), failed)
    assert message == "step 1: all 4 episodes failed, so no policy learns"
    assert line(RLOO(), [*failed, *single_turn_group(1.0, 0.0)]) is None


def test_the_message_appears_once_at_the_first_of_such_steps() -> None:
    credit = RLOO()
    zero_advantages = ZeroAdvantages(credit)
    flat, fine = single_turn_group(1.0, 1.0), single_turn_group(1.0, 0.0)
    messages = [
        zero_advantages.line(step, groups, credit.assign(groups))
        for step, groups in enumerate([fine, flat, flat, fine, flat], 1)
    ]
    assert [each is not None for each in messages] == [False, True, False, False, True]


def test_phases_that_alternate_give_a_line_once_and_not_in_every_phase() -> None:
    credit = RLOO()
    zero_advantages = ZeroAdvantages(credit)
    flat = [group(*(episode(replace(turn("judge_0", 1.0), policy="judge")) for _ in range(2)))]
    steps = [single_turn_group(1.0, 0.0), flat, single_turn_group(1.0, 0.0), flat]
    lines = [zero_advantages.line(n, g, credit.assign(g)) for n, g in enumerate(steps, 1)]
    assert [each is not None for each in lines] == [False, True, False, False]
    # Steps without samples are named again after a step with a signal.
    steps = [[], steps[0], [], []]
    lines = [zero_advantages.line(n, g, credit.assign(g)) for n, g in enumerate(steps, 5)]
    assert [each is not None for each in lines] == [True, False, True, False]


def test_a_policy_that_is_never_paid_is_named_once() -> None:
    def played(judge_paid: float) -> list[Group]:
        judge = replace(turn("judge_0", judge_paid), policy="judge")
        fine = [episode(turn("solver_0", paid), judge) for paid in (1.0, 0.0)]
        return [group(*fine)]

    credit, unpaid = RLOO(), UnpaidPolicies(RLOO())

    def lines(step: int, groups: list[Group]) -> list[str]:
        return list(unpaid.lines(step, groups, credit.assign(groups)))

    assert lines(1, played(0.5)) == []  # equal pay is pay
    (message,) = lines(2, played(0.0))
    assert message.startswith(
        "step 2: all 2 advantages of policy 'judge' are 0, because its agents"
    )
    assert lines(3, played(0.0)) == []
    zero = single_turn_group(0.0, 0.0)
    assert list(UnpaidPolicies(credit).lines(1, zero, credit.assign(zero))) == []
    # Credit by the team's pay gives the judge advantages.
    team = MAGRPO()
    assert list(UnpaidPolicies(team).lines(1, played(0.0), team.assign(played(0.0)))) == []
    # Under a method that reads metrics, rewards are not the reason.
    for role, named in (("judge", False), ("solver", True)):
        by_role = ByRole(methods={role: LearningProgress(), "default": RLOO()})
        found = list(UnpaidPolicies(by_role).lines(1, played(0.0), credit.assign(played(0.0))))
        assert bool(found) == named


def test_the_fraction_of_samples_without_an_advantage() -> None:
    some = [sample([1], [2, 3], a) for a in (0.0, 1.0, (0.0, 0.0), (0.0, -1.0))]
    assert zero_fraction(some) == 0.5 and zero_fraction([]) == 1.0


def test_a_metric_that_no_game_has_is_named_with_its_nearest() -> None:
    played = [group(episode(turn("a_0"), metrics={"accuracy": 1.0, "solved": 0.0}))]
    parts = {
        "credit": ByRole(
            methods={"solver": RejectionSampling(measure="acuracy"), "default": RLOO()}
        ),
        "sampler": Resample(penalty="nonsense"),
    }
    first, second = unmeasured(parts, played)
    assert first.startswith("credit.methods.solver.measure: none of 1 finished episodes")
    assert "'acuracy'" in first and "'accuracy'" in first
    assert second.startswith("sampler.penalty:") and "'nonsense'" in second
    fine = {"credit": RejectionSampling(), "sampler": Resample(), "other": object()}
    assert list(unmeasured(fine, played)) == []
    cut = group(replace(played[0].episodes[0], status=Status.TRUNCATED))
    assert list(unmeasured(parts, [cut])) == [], "without finished episodes the metrics are unknown"


def test_a_sampler_that_cannot_branch_is_named() -> None:
    call, answer = turn("a_0", stage=0), turn("a_0", stage=0)
    single = [group(episode(call, answer), episode(turn("a_0", stage=0)))]
    (message,) = unbranched(Branch(), single)
    assert message.startswith("sampler Branch: ") and "sampler=independent" in message
    several = [*single, group(episode(call, turn("b_0", stage=1)))]
    assert list(unbranched(Branch(), several)) == list(unbranched(Branch(), [])) == []
    assert list(unbranched(Independent(), single)) == []


def test_the_first_step_in_which_most_games_are_cut_off_is_named_once() -> None:
    (whole,) = single_turn_group(0.0, 1.0, 1.0)
    cut = [replace(each, status=Status.TRUNCATED) for each in whole.episodes]
    unfinished = Unfinished()
    few, most = group(*whole.episodes, *cut[:2]), group(*whole.episodes[:1], *cut)
    too_long = group(*(replace(each, error="PromptTooLong: 9 tokens") for each in cut))
    steps = [[], [few], [too_long], [most], [most]]
    messages = [unfinished.line(step, groups) for step, groups in enumerate(steps, 1)]
    assert messages[:3] == [None] * 3 and messages[4] is None
    assert messages[3] and messages[3].startswith(
        "step 4: 3 of 4 episodes were cut off at rollout.max_tur"
    )


def test_most_completions_that_were_cut_off_are_named() -> None:
    def solved(*cut: bool) -> list[Group]:
        reasons = [StopReason.LENGTH if each else StopReason.STOP for each in cut]
        return [group(*(episode(turn("player_0", 0.5, stop_reason=each)) for each in reasons))]

    message = line(RLOO(), solved(True, True, False))
    assert message and message.endswith(
        "equal; 2 of 3 completions were cut off at their token limit, see "
        "sampling.default.max_tokens"
    )
    message = line(RLOO(), solved(True, False))
    assert message and message.endswith("the returns that credit compares are equal")
