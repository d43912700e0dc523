"""Tests of credit by role: each role has its own credit method."""

import json
from typing import Any

import pytest

from selfplay.credit.by_role import ByRole
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.credit.magrpo import MAGRPO
from selfplay.credit.rae import RAE
from selfplay.credit.trr import TRR
from selfplay.errors import ConfigError
from selfplay.experiment.validation import check_sampler_supports_credit
from selfplay.sampler.independent import Independent
from tests.helpers.builders import episode, group, turn


def groups() -> list[Any]:
    """Return two groups of one proposal and two attempts each."""
    return [
        group(
            episode(
                turn("proposer_0", paid),
                turn("solver_0", 1.0, prompt_ids=(9, number)),
                turn("solver_1", 0.0, prompt_ids=(9, number)),
            ),
            name=str(number),
        )
        for number, paid in enumerate((1.0, 3.0))
    ]


def by_turn(samples: Any) -> dict[int, float]:
    return {id(sample.turn): sample.advantage for sample in samples}


def test_each_role_has_its_own_comparison() -> None:
    given = groups()
    credit = ByRole(methods={"default": TRR(epsilon=0.0), "solver": DrGRPO(group_by="prompt")})
    found = by_turn(credit.assign(given))
    turns = [t for each in given for e in each.episodes for t in e.turns]
    # Proposals with pay 1 and 3 are compared: +-1 / sqrt(2). Attempts at one question are compared.
    expected = [-(0.5**0.5), 0.5, -0.5, 0.5**0.5, 0.5, -0.5]
    assert [found[id(t)] for t in turns] == pytest.approx(expected)


def test_a_method_keeps_averages_of_its_own_roles_only() -> None:
    credit = ByRole(methods={"default": TRR(), "solver": RAE(by="role")})
    credit.assign(groups())
    assert set(credit.metrics()) == {"solver/baseline/game_v0/solver/base"}
    twin = ByRole(methods={"default": TRR(), "solver": RAE(by="role")})
    twin.load_state_dict(json.loads(json.dumps(credit.state_dict())))
    assert twin.metrics() == credit.metrics() and not credit.modules()
    with pytest.raises(ValueError, match="but got"):
        ByRole(methods={"judge": TRR()}).load_state_dict(credit.state_dict())


def test_a_role_without_a_method_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"credit\.methods: no 'proposer'"):
        ByRole(methods={"solver": TRR()}).assign(groups())
    with pytest.raises(ValueError, match="names no role"):
        ByRole(methods={})


def test_the_sampler_must_support_the_method_of_each_role() -> None:
    sampler = Independent(group_size=1)
    check_sampler_supports_credit(ByRole(methods={"default": TRR()}), sampler)
    with pytest.raises(ConfigError, match="group_size is 1"):
        check_sampler_supports_credit(ByRole(methods={"solver": MAGRPO()}), sampler)
