"""Independent episodes: each task is played G times from the same initial state."""

from collections.abc import Sequence
from typing import ClassVar

from selfplay.curriculum import Curriculum
from selfplay.curriculum.checked_calls import show, tasks_of
from selfplay.errors import ConfigError
from selfplay.rng import derive
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn
from selfplay.sampler.base import GroupSampler
from selfplay.types import Group, Task


class Independent(GroupSampler):
    """Plays G siblings per task, which share task and seed and differ in the policies' samples."""

    keeps_all: ClassVar[bool] = True

    def __init__(self, *, group_size: int = 1) -> None:
        """Args:
        group_size: G, episodes per task.
        """
        if group_size < 1:
            raise ValueError(f"group_size must be at least 1, not {group_size}")
        self.group_size = group_size

    def sample(
        self, curriculum: Curriculum, rollout_fn: RolloutFn, *, step: int, seed: int
    ) -> list[Group]:
        """Return the step's tasks, each played G times."""
        groups = play_groups(
            tasks_of(curriculum, step), rollout_fn, size=self.group_size, seed=seed, step=step
        )
        show(curriculum, groups, step)
        self._played = groups
        return groups


def play_groups(
    tasks: Sequence[Task],
    rollout_fn: RolloutFn,
    *,
    size: int,
    seed: int,
    step: int,
    attempt: int = 0,
) -> list[Group]:
    """Return a group of `size` episodes for every task.

    Raises ConfigError if a step has no task; a refill (`attempt` above 0) may have none.
    """
    if not attempt:
        require_tasks(tasks, step=step)
    specs = [
        sibling_spec(task, member, number, seed=seed, step=step, attempt=attempt)
        for number, task in enumerate(tasks)
        for member in range(size)
    ]
    episodes = rollout_fn(specs)
    return [
        Group(
            id=group_id(number, step=step, attempt=attempt),
            episodes=tuple(episodes[number * size : (number + 1) * size]),
        )
        for number in range(len(tasks))
    ]


def sibling_spec(
    task: Task, member: int, number: int, *, seed: int, step: int, attempt: int = 0
) -> EpisodeSpec:
    """Return one of a task's episodes, which all have the same seed.

    Args:
        task: The task.
        member: Index of the episode in its group.
        number: Index of the task in the step's round.
        seed: Seed of the step.
        step: The step.
        attempt: Index of the round, from 0; each asks the curriculum for tasks.
    """
    seed = derive(seed, step, attempt, number, task.id)
    return EpisodeSpec(task=task, seed=seed, member=member)


def group_id(number: int, *, step: int, attempt: int = 0) -> str:
    """Return the id of the group of the task with this index in a round of a step."""
    return f"{step}.{attempt}.{number}"


def require_tasks(tasks: Sequence[Task], *, step: int) -> None:
    """Raise ConfigError if the curriculum gave no task for a step."""
    if not tasks:
        raise ConfigError(
            f"curriculum: it has no task for step {step}, so nothing can be played; give it tasks, "
            "or let it request proposals"
        )
