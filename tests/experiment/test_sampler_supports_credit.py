"""A credit method that its sampler cannot feed is refused when the config is read."""

from typing import Any, ClassVar

import pytest

from selfplay.config import compose
from selfplay.config.instantiate import TARGET
from selfplay.credit.base import StatelessCredit
from selfplay.errors import ConfigError
from selfplay.experiment import validation
from selfplay.experiment.validation import validate

ALONE = [
    ["credit=grpo", "credit.group_by=agent"],
    ["credit=dr_grpo", "credit.group_by=agent"],
    ["credit=rloo", "credit.group_by=agent"],
    ["credit=turn", "credit.group_by=agent"],
    ["credit=gigpo", "credit.group_by=agent"],
    ["credit=pass_at_k", "credit.group_by=agent", "credit.k=1"],
    ["credit=reinforce_pp", "credit.group_by=agent", "credit.baseline=group"],
    ["credit=magrpo"],
]


def load(*overrides: str) -> dict[str, Any]:
    return compose.load(["+experiment=tiny/quickstart", *overrides])


@pytest.mark.parametrize("credit", ALONE, ids=lambda credit: credit[0])
def test_siblings_are_needed_where_an_agent_is_compared_with_itself(credit: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"group_size is 1, .* every advantage would be zero"):
        validate(load(*credit))
    validate(load(*credit, "sampler.group_size=2"))


@pytest.mark.parametrize(
    "overrides",
    [
        ["credit=grpo", "credit.group_by=prompt"],
        ["credit=pass_at_k"],
        ["credit=reinforce_pp", "credit.group_by=agent"],
        ["credit=rae"],
        ["credit=gae"],
        ["credit=trr"],
        ["credit=rloo", "credit.group_by=agent", "sampler=dynamic"],
    ],
)
def test_solvers_of_one_episode_the_batch_or_an_average_are_enough(overrides: list[str]) -> None:
    validate(load(*overrides))


def test_pass_at_k_needs_more_than_k() -> None:
    with pytest.raises(
        ConfigError, match=r"at least 5 sibling episodes, but sampler\.group_size is"
    ):
        validate(load("credit=pass_at_k", "credit.group_by=agent", "sampler.group_size=4"))


def test_the_default_group_size_counts_where_the_config_leaves_it_out() -> None:
    node = {TARGET: "selfplay.credit.rloo.RLOO", "group_by": "agent"}
    validation.check_sampler_supports_credit(node, {TARGET: "selfplay.sampler.dynamic.Dynamic"})
    with pytest.raises(ConfigError, match="group_size is 1"):
        validation.check_sampler_supports_credit(
            node, {TARGET: "selfplay.sampler.independent.Independent"}
        )


SOLVER = "+credit.methods.solver={_target_: selfplay.credit.trr.TRR}"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([SOLVER.replace("solver", "slover")], r"credit\.methods: no role 'slover'.*'solver'"),
        ([SOLVER, "~credit.methods.default"], r"credit\.methods: none for 'proposer'"),
        (["shaping=repetition", "shaping.repetition.role=propser"], r"repetition\.role: no role"),
        (["+credit.methods.solver=null"], r"drop it: ~credit\.methods\.solver"),
    ],
)
def test_a_role_that_nobody_plays_or_credits_is_refused(overrides: list[str], said: str) -> None:
    pytest.importorskip("nltk")
    with pytest.raises(ConfigError, match=said):
        validate(load("credit=by_role", *overrides))


def test_roles_that_all_have_a_method_need_no_default() -> None:
    both = [SOLVER, SOLVER.replace("solver", "proposer"), "~credit.methods.default"]
    validate(load("credit=by_role", *both))


class Branches(StatelessCredit):
    """A method that credits branches."""

    tree: ClassVar[bool] = True


class Tree:
    """A sampler that branches, and has no size of a group."""

    tree: ClassVar[bool] = True


class Own:
    """A credit method of a user's, which says nothing of what it needs."""


def test_a_method_that_credits_branches_needs_a_sampler_that_branches() -> None:
    branches = {TARGET: f"{__name__}.Branches"}
    with pytest.raises(ConfigError, match="Branches credits branches, but Independent plays"):
        validation.check_sampler_supports_credit(
            branches, {TARGET: "selfplay.sampler.independent.Independent"}
        )
    for credit in ("Branches", "Own"):
        validation.check_sampler_supports_credit(
            {TARGET: f"{__name__}.{credit}"}, {TARGET: f"{__name__}.Tree"}
        )
    validation.check_sampler_supports_credit(
        {TARGET: f"{__name__}.Own"}, {TARGET: "selfplay.sampler.independent.Independent"}
    )
