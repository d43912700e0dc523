"""Tests that a check refuses a credit method whose sampler makes no suitable groups."""

from typing import Any, ClassVar

import pytest

from selfplay.config import compose
from selfplay.credit.at_grpo import ATGRPO
from selfplay.credit.base import StatelessCredit
from selfplay.credit.by_role import ByRole
from selfplay.credit.grpo import GRPO
from selfplay.credit.nested_methods import methods_of
from selfplay.credit.rloo import RLOO
from selfplay.credit.trr import TRR
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check
from selfplay.experiment.validation import check_sampler_supports_credit, sampler_notes
from selfplay.sampler.dynamic import Dynamic
from selfplay.sampler.independent import Independent

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
        check(load(*credit))
    check(load(*credit, "sampler.group_size=2"))


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
    check(load(*overrides))


def test_the_method_of_a_role_is_named_by_its_key_also_inside_another() -> None:
    inner = ByRole(methods={"solver": RLOO(group_by="agent")})
    assert list(methods_of(GRPO(), "credit")) == ["credit"]
    with pytest.raises(ConfigError) as caught:
        check_sampler_supports_credit(ByRole(methods={"default": inner}), Independent())
    where = "credit.methods.default.methods.solver"
    assert str(caught.value).startswith(f"{where}: RLOO compares an agent with itself")
    assert str(caught.value).endswith(f"(or {where}.group_by to role or prompt)")


def test_pass_at_k_needs_more_than_k() -> None:
    with pytest.raises(
        ConfigError, match=r"more than k=4 answers .*, but sampler\.group_size is 4"
    ):
        check(load("credit=pass_at_k", "credit.group_by=agent", "sampler.group_size=4"))


def test_the_agents_of_a_role_count_for_pass_at_k() -> None:
    with pytest.raises(ConfigError, match=r"^credit: PassAtK .*sampler\.group_size is 4"):
        check(
            compose.load(["+experiment=tiny/signal", "algorithm=pass_at_k", "sampler.group_size=4"])
        )
    check(compose.load(["+experiment=tiny/signal", "algorithm=pass_at_k", "sampler.group_size=5"]))


def test_the_default_group_size_counts_where_the_config_leaves_it_out() -> None:
    check_sampler_supports_credit(RLOO(group_by="agent"), Dynamic())
    with pytest.raises(ConfigError, match="group_size is 1"):
        check_sampler_supports_credit(RLOO(group_by="agent"), Independent())


SOLVER = "+credit.methods.solver={_target_: selfplay.credit.trr.TRR}"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([SOLVER.replace("solver", "slover")], r"credit\.methods: no role 'slover'.*'solver'"),
        ([SOLVER, "~credit.methods.default"], r"credit\.methods: none for 'proposer'"),
        (["shaping=repetition", "shaping.repetition.role=propser"], r"repetition\.role: no role"),
        (["+credit.methods.solver=null"], r"drop it: ~credit\.methods\.solver"),
    ],
)
def test_an_unknown_role_or_a_role_without_credit_is_refused(
    overrides: list[str], words: str
) -> None:
    pytest.importorskip("nltk")
    with pytest.raises(ConfigError, match=words):
        check(load("credit=by_role", *overrides))


def test_roles_that_all_have_a_method_need_no_default() -> None:
    both = [SOLVER, SOLVER.replace("solver", "proposer"), "~credit.methods.default"]
    check(load("credit=by_role", *both))


class Branches(StatelessCredit):
    """A method that credits branches."""

    tree: ClassVar[bool] = True


class Tree:
    """A sampler that branches, and has no size of a group."""

    tree: ClassVar[bool] = True


class Own:
    """A user's credit method without a declaration of its needs."""


def test_a_method_that_credits_branches_needs_a_sampler_that_branches() -> None:
    tree: Any = Tree()
    own: Any = Own()
    branches: Any = Branches()
    with pytest.raises(ConfigError, match="Branches credits branches, but Independent plays"):
        check_sampler_supports_credit(branches, Independent())
    check_sampler_supports_credit(branches, tree)
    check_sampler_supports_credit(own, tree)
    check_sampler_supports_credit(own, Independent())


def test_a_credit_method_that_misjudges_turns_of_the_sampler_is_noted() -> None:
    tree: Any = Tree()
    own: Any = Own()
    (shared,) = sampler_notes(RLOO(), tree)
    assert "RLOO takes all episodes for independent ones, and Tree makes" in shared
    (dropped,) = sampler_notes(ByRole(methods={"proposer": TRR(), "solver": GRPO()}), Dynamic())
    assert dropped.startswith("credit.methods.proposer: TRR can learn from groups in which all")
    assert "returns are equal, and Dynamic drops" in dropped
    for credit, sampler in (
        (ATGRPO(), tree),
        (own, tree),
        (GRPO(), Dynamic()),
        (own, Dynamic()),
        (TRR(), Independent()),
    ):
        assert sampler_notes(credit, sampler) == []


def test_a_role_whose_only_agent_is_compared_with_no_other_has_a_note() -> None:
    proposer = "+credit.methods.proposer={_target_: selfplay.credit.rloo.RLOO}"
    config = ["credit=by_role", proposer]
    (note,) = [each for each in check(load(*config)) if "every advantage" in each]
    assert note.startswith("credit: RLOO with group_by=role compares the agents of a role")
    assert "one agent of the role 'proposer'" in note and "sampler.group_size to 2" in note
    frozen = ["population=separate", "+population.overrides.proposer.learn=false"]
    for others in (["sampler.group_size=2"], frozen):
        assert not [each for each in check(load(*config, *others)) if "every advantage" in each]
