"""Tests that the state of a custom curriculum is checked before it is saved."""

from random import Random
from typing import Any

import pytest

from selfplay.curriculum.fixed import FixedTasks
from selfplay.curriculum.mixture import MixtureCurriculum
from selfplay.curriculum.scheduled import ScheduledTasks
from selfplay.curriculum.step_tasks import StepTasks
from selfplay.errors import ConfigError
from selfplay.sampler.independent import Independent
from selfplay.sampler.prefetch import OnDemandBatches
from selfplay.types import Task


class Careless(FixedTasks):
    """A custom curriculum whose state has an object in it."""

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": 1, "rng": Random(0)}


@pytest.mark.parametrize(
    ("wrap", "where"),
    [
        (lambda own: own, "curriculum"),
        (
            lambda own: ScheduledTasks(curriculum=own, key="p", start=0, end=1, steps=1),
            "curriculum.curriculum",
        ),
        (
            lambda own: MixtureCurriculum(parts={"a": own}, batch=1, shares={"a": 1}),
            "curriculum.parts.a",
        ),
    ],
)
def test_a_state_that_is_not_plain_data_is_a_one_line_error(wrap: Any, where: str) -> None:
    batches = OnDemandBatches(
        curriculum=wrap(Careless(tasks=[Task(id="t")], batch=1)),
        sampler=Independent(group_size=1),
        rollout_fn=lambda specs: [],
        seed=lambda: 0,
    )
    words = rf"^{where}: Careless\.state_dict has 'rng', which a checkpoint cannot hold \(.*plain"
    with pytest.raises(ConfigError, match=words):
        batches.curriculum_state()


def test_the_state_of_a_step_that_is_sampled_ahead_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"^curriculum: Careless\.state_dict has 'rng'"):
        StepTasks(Careless(tasks=[Task(id="t")], batch=1), 1)


@pytest.mark.parametrize(
    ("wrap", "where"),
    [
        (
            lambda own: ScheduledTasks(curriculum=own, key="p", start=0, end=1, steps=1),
            "curriculum.curriculum",
        ),
        (
            lambda own: MixtureCurriculum(parts={"a": own}, batch=1, shares={"a": 1}),
            "curriculum.parts.a",
        ),
    ],
)
def test_a_curriculum_inside_another_has_all_methods(wrap: Any, where: str) -> None:
    class Short:
        """A curriculum that has `tasks` alone."""

        def tasks(self, step: int, attempt: int = 0) -> list[Task]:
            return []

    words = rf"^{where}: Short is not a valid curriculum, because it lacks observe, ready, metrics"
    with pytest.raises(ConfigError, match=words):
        wrap(Short())
