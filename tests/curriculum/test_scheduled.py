"""Tests of scheduled tasks: a number in their payload changes with the training step."""

import pytest

from selfplay.curriculum.fixed import FixedTasks
from selfplay.curriculum.scheduled import ScheduledTasks
from selfplay.errors import ConfigError
from selfplay.types import Task


def scheduled(**settings: float) -> ScheduledTasks:
    tasks = [Task(id=str(number), payload={"number": number}) for number in range(3)]
    given = {"start": 0.0, "end": 0.5, "steps": 200, **settings}
    return ScheduledTasks(
        curriculum=FixedTasks(tasks=tasks, batch=2),
        key="noise",
        **given,  # type: ignore[arg-type]
    )


def test_the_values_of_the_schedule_of_zero_search() -> None:
    at = scheduled()
    wanted = {0: 0.0, 50: 0.0690, 100: 0.1667, 150: 0.3047, 200: 0.5, 900: 0.5, -1: 0.0}
    for step, value in wanted.items():
        assert at.value(step) == pytest.approx(value, abs=5e-5)


def test_base_1_is_linear_and_the_number_may_fall() -> None:
    assert scheduled(base=1.0).value(50) == pytest.approx(0.125)
    assert scheduled(start=0.8, end=0.2, base=1.0).value(100) == pytest.approx(0.5)


def test_tasks_keep_their_content_and_get_the_number() -> None:
    curriculum = scheduled(base=1.0)
    assert curriculum.metrics()["noise"] == 0
    for task in curriculum.tasks(100):
        assert task.payload == {"number": int(task.id), "noise": 0.25}
    assert curriculum.metrics() == {"laps": pytest.approx(2 / 3), "noise": 0.25}


def test_a_resumed_curriculum_continues_with_the_same_tasks() -> None:
    first, second = scheduled(), scheduled()
    first.tasks(1)
    second.load_state_dict(first.state_dict())
    assert second.tasks(2) == first.tasks(2)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"base": 0.0}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="steps is at least 1"):
        scheduled(**wrong)
