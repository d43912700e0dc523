"""One line each: a step without any signal to learn from, and a metric that no game has."""

from dataclasses import replace

import pytest

from selfplay.credit import Credit
from selfplay.credit.at_grpo import ATGRPO
from selfplay.credit.base import GroupBy
from selfplay.credit.by_role import ByRole
from selfplay.credit.magrpo import MAGRPO
from selfplay.credit.missing_signals import (
    Unfinished,
    UnpaidPolicies,
    ZeroAdvantages,
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
from selfplay.types import Group, Status, StopReason
from tests.helpers.builders import episode, group, sample, solos, turn


def match(paid: float) -> Group:
    first, second = turn("player_0", paid), turn("player_1", 0.1 - paid - 0.1)
    return group(episode(first, second), episode(second, first))


def line(credit: Credit, groups: list[Group], step: int = 1) -> str | None:
    return ZeroAdvantages(credit).line(step, groups, credit.assign(groups))


@pytest.mark.parametrize(
    "credit", [MAGRPO(), ATGRPO(returns="team"), ByRole(methods={"default": MAGRPO()})]
)
def test_a_team_credit_in_a_zero_sum_game_is_named(credit: Credit) -> None:
    said = line(credit, [match(0.3), match(1.0)])
    assert said and "step 1: all 8 advantages are 0" in said
    assert "zero-sum" in said and "credit=rloo" in said


def test_other_reasons_are_not_called_a_zero_sum_game() -> None:
    said = line(MAGRPO(), solos(1.0, 1.0))
    assert said and "all 2 advantages are 0" in said and "zero-sum" not in said
    said = line(RLOO(group_by="agent"), solos(0.5, 0.5))
    assert said and "returns that credit compares are equal" in said
    for credit in (MAGRPO(), RLOO(group_by="agent")):
        said = line(credit, solos(0.0, 0.0))
        assert said and said.endswith("the return of every agent is 0 in every episode")
    said = line(RLOO(group_by="role"), solos(0.5))
    assert said and said.endswith("set sampler.group_size to 2 or more")
    assert said and "each group has one episode, and its agents are compared with no other" in said
    team = [group(episode(turn("solver_0", 0.5), turn("solver_1", 0.5)))]
    cases: list[tuple[GroupBy, bool]] = [("agent", True), ("role", False), ("prompt", False)]
    for by, alone in cases:
        said = line(RLOO(group_by=by), team)
        assert said and ("one episode" in said) == alone
    endless = [replace(each, status=Status.TRUNCATED) for each in solos(0.0, 0.0)[0].episodes]
    said = line(MAGRPO(), [group(*endless)])
    assert said and "every episode was cut off at a limit (rollout.max_turns" in said
    assert line(RLOO(), []) == "step 1: credit made no samples, so no policy learns in this step"
    assert line(RLOO(), solos(1.0, 0.0)) is None


def test_pass_at_k_names_its_k() -> None:
    for credit in (PassAtK(k=4), ByRole(methods={"solver": PassAtK(k=4), "default": RLOO()})):
        said = line(credit, solos(1.0, 0.0, 0.0, 0.0))
        assert said and "more than k=4 answers" in said and "are equal" not in said


@pytest.mark.parametrize("sampler", [Adaptive(), Resample()])
def test_a_sampler_that_looks_for_successes_in_a_zero_sum_game_is_named(sampler: object) -> None:
    (said,) = zero_sum(sampler, [match(0.3), match(1.0)])
    assert said.startswith(f"sampler {type(sampler).__name__}: ") and "zero-sum" in said
    assert "sampler=independent" in said
    assert list(zero_sum(sampler, [match(0.3), *solos(1.0)])) == []
    assert list(zero_sum(sampler, solos(0.0))) == [], "an unpaid game may be any game"
    assert list(zero_sum(sampler, [])) == list(zero_sum(Independent(), [match(1.0)])) == []


def test_a_step_whose_episodes_all_failed_says_so() -> None:
    failed = [
        group(*(replace(each, status=Status.FAILED, error="no") for each in played.episodes))
        for played in (solos(1.0, 0.0)[0], solos(1.0, 0.0)[0])
    ]
    said = line(RLOO(), failed)
    assert said == "step 1: all 4 episodes failed, so no policy learns"
    assert line(RLOO(), [*failed, *solos(1.0, 0.0)]) is None


def test_it_is_said_once_where_such_steps_begin() -> None:
    credit = RLOO()
    zero_advantages = ZeroAdvantages(credit)
    flat, fine = solos(1.0, 1.0), solos(1.0, 0.0)
    said = [
        zero_advantages.line(step, groups, credit.assign(groups))
        for step, groups in enumerate([fine, flat, flat, fine, flat], 1)
    ]
    assert [each is not None for each in said] == [False, True, False, False, True]


def test_a_policy_that_is_never_paid_is_named_once() -> None:
    def played(judge_paid: float) -> list[Group]:
        judge = replace(turn("judge_0", judge_paid), policy="judge")
        fine = [episode(turn("solver_0", paid), judge) for paid in (1.0, 0.0)]
        return [group(*fine)]

    credit, unpaid = RLOO(), UnpaidPolicies()

    def lines(step: int, groups: list[Group]) -> list[str]:
        return list(unpaid.lines(step, groups, credit.assign(groups)))

    assert lines(1, played(0.5)) == []  # equal pay is no missing pay
    (said,) = lines(2, played(0.0))
    assert said.startswith("step 2: all 2 advantages of policy 'judge' are 0, because its agents")
    assert lines(3, played(0.0)) == []
    assert list(UnpaidPolicies().lines(1, solos(0.0, 0.0), credit.assign(solos(0.0, 0.0)))) == []
    # Credit by the team's pay gives the judge advantages.
    team = MAGRPO()
    assert list(UnpaidPolicies().lines(1, played(0.0), team.assign(played(0.0)))) == []


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
    assert list(unmeasured(parts, [cut])) == [], "nothing was played that could tell"


def test_a_sampler_that_cannot_branch_is_named() -> None:
    call, answer = turn("a_0", stage=0), turn("a_0", stage=0)
    single = [group(episode(call, answer), episode(turn("a_0", stage=0)))]
    (said,) = unbranched(Branch(), single)
    assert said.startswith("sampler Branch: ") and "sampler=independent" in said
    several = [*single, group(episode(call, turn("b_0", stage=1)))]
    assert list(unbranched(Branch(), several)) == list(unbranched(Branch(), [])) == []
    assert list(unbranched(Independent(), single)) == []


def test_the_first_step_in_which_most_games_are_cut_off_is_named_once() -> None:
    (whole,) = solos(0.0, 1.0, 1.0)
    cut = [replace(each, status=Status.TRUNCATED) for each in whole.episodes]
    unfinished = Unfinished()
    few, most = group(*whole.episodes, *cut[:2]), group(*whole.episodes[:1], *cut)
    too_long = group(*(replace(each, error="PromptTooLong: 9 tokens") for each in cut))
    steps = [[], [few], [too_long], [most], [most]]
    said = [unfinished.line(step, groups) for step, groups in enumerate(steps, 1)]
    assert said[:3] == [None] * 3 and said[4] is None
    assert said[3] and said[3].startswith("step 4: 3 of 4 episodes were cut off at rollout.max_tur")


def test_most_completions_that_were_cut_off_are_named() -> None:
    def solved(*cut: bool) -> list[Group]:
        reasons = [StopReason.LENGTH if each else StopReason.STOP for each in cut]
        return [group(*(episode(turn("player_0", 0.5, stop_reason=each)) for each in reasons))]

    said = line(RLOO(), solved(True, True, False))
    assert said and said.endswith(
        "equal; 2 of 3 completions were cut off at their token limit, see "
        "sampling.default.max_tokens"
    )
    said = line(RLOO(), solved(True, False))
    assert said and said.endswith("the returns that credit compares are equal")
