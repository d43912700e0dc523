"""Tests of fixed tasks: each task occurs once per lap, in an order set by the seed."""

import json

import pytest

from selfplay.curriculum.fixed import FixedTasks
from selfplay.errors import ConfigError
from selfplay.types import Task

TASKS = [Task(id=str(number)) for number in range(5)]


def drawn(curriculum: FixedTasks, steps: int) -> list[str]:
    return [task.id for step in range(steps) for task in curriculum.tasks(step)]


def test_every_lap_has_every_task_in_a_new_order() -> None:
    curriculum = FixedTasks(tasks=TASKS, batch=3)
    ids = drawn(curriculum, 10)
    laps = [tuple(ids[at : at + 5]) for at in range(0, 30, 5)]
    assert all(sorted(lap) == [task.id for task in TASKS] for lap in laps)
    assert len(set(laps)) > 1
    assert curriculum.metrics() == {"laps": 6} and curriculum.ready()


def test_a_batch_may_be_longer_than_the_set() -> None:
    ids = [task.id for task in FixedTasks(tasks=TASKS, batch=12).tasks(1)]
    assert ids == drawn(FixedTasks(tasks=TASKS, batch=3), 4)


def test_the_seed_sets_the_order_and_the_state_the_position() -> None:
    curriculum = FixedTasks(tasks=TASKS, batch=2, seed=1)
    assert drawn(FixedTasks(tasks=TASKS, batch=2, seed=1), 9) == drawn(curriculum, 9)
    assert drawn(FixedTasks(tasks=TASKS, batch=2, seed=2), 9) != drawn(
        FixedTasks(tasks=TASKS, batch=2, seed=1), 9
    )
    twin = FixedTasks(tasks=TASKS, batch=2, seed=1)
    twin.load_state_dict(json.loads(json.dumps(curriculum.state_dict())))
    assert drawn(twin, 9) == drawn(curriculum, 9)


def test_no_tasks_and_a_batch_below_1_are_refused() -> None:
    with pytest.raises(ConfigError, match="list of tasks is empty"):
        FixedTasks(tasks=[], batch=1)
    with pytest.raises(ConfigError, match="batch is at least 1"):
        FixedTasks(tasks=TASKS, batch=0)
