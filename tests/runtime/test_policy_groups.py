"""Tests of workers by policy: their groups, and the refusal of wrong settings."""

import re
from typing import Any

import pytest

from selfplay.config.compose import load
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check
from selfplay.runtime.placement import placed
from selfplay.runtime.policy_groups import PolicyGroup, check_groups, policy_groups
from selfplay.runtime.ray import RayRuntime
from tests.helpers.command_process import SMOKE

pytest.importorskip("ray")

DEBATE = (
    PolicyGroup(policies=("proposer", "critic"), workers=2),
    PolicyGroup(policies=("judge",), workers=1),
)


def test_a_mapping_makes_groups_and_a_name_joins_one() -> None:
    assert policy_groups({"proposer": 2, "judge": 1, "critic": "proposer"}) == DEBATE
    check_groups(DEBATE, ["judge", "critic", "proposer"])


@pytest.mark.parametrize(
    ("workers", "line"),
    [
        ({"proposer": 0}, "workers.proposer must be at least 1, not 0"),
        ({}, "workers names no policy; give a number, or one for each policy"),
        ({"a": "b", "b": "a"}, "workers.a: 'b' is not a policy with workers of its own"),
        ({"judge": 1, "critic": "jugde"}, "did you mean 'judge'"),
    ],
)
def test_impossible_numbers_are_one_line(workers: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        RayRuntime(workers=workers)


@pytest.mark.parametrize("more", [{"colocated": True}, {"chunks": 2}])
def test_settings_that_do_not_fit_groups_are_one_line(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^workers by policy do not fit .* chunks=1$"):
        RayRuntime(workers={"proposer": 1}, **more)


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        check(load([SMOKE, "runtime=ray", "population=separate", *overrides]))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_policies_that_are_unknown_or_left_out_are_one_line() -> None:
    line = refused("runtime.workers={proposer: 1, solvr: 1}")
    assert line == "runtime.workers: no policy 'solvr'; did you mean 'solver'?"
    line = refused("runtime.workers={proposer: 1}")
    assert line.startswith("runtime.workers: policy 'solver' has no workers; add solver: NUMBER")
    assert "workers.proposer must be at least 1, not -1" in refused(
        "runtime.workers={proposer: -1}"
    )
    assert refused("runtime.workers=[1]").startswith("runtime.workers: [1] does not fit")
    check(
        load(
            [
                SMOKE,
                "runtime=ray",
                "population=separate",
                "runtime.workers={proposer: 1, solver: proposer}",
            ]
        )
    )


def test_the_notes_name_the_workers_of_each_policy() -> None:
    made = placed(
        workers=3, learners=None, worker_gpus=None, learner_gpus=None, available=4, groups=DEBATE
    )
    assert made.gpus == 4
    assert made.notes() == [
        "runtime: proposer and critic on 2 worker(s), judge on 1 worker(s); this process plays the "
        "episodes",
        "runtime: 3 worker(s) with 1 GPU(s) each, 1 learner rank(s) with 1 GPU(s) each",
    ]
