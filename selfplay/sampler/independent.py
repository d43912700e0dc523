"""Independent episodes: each task is played G times from the same initial state."""

from collections.abc import Sequence
from typing import ClassVar

from selfplay.curriculum import Curriculum
from selfplay.curriculum.checked_calls import show, tasks_of
from selfplay.errors import ConfigError
from selfplay.rng import derive
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn
from selfplay.types import Group, Task


class Independent:
    """Plays G siblings per task, which share task and seed and differ in the policies' samples."""

    tree: ClassVar[bool] = False
    refills: ClassVar[bool] = False

    def __init__(self, *, group_size: int = 1) -> None:
        """Args:
        group_size: G, episodes per task.
        """
        if group_size < 1:
            raise ValueError(f"group_size must be at least 1, not {group_size}")
        self.group_size = group_size
        self._played: list[Group] = []

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

    def played(self) -> list[Group]:
        """Return the groups of the last call."""
        return self._played

    def metrics(self) -> dict[str, float]:
        return {}


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
        EpisodeSpec(task=task, seed=derive(seed, step, attempt, number, task.id), member=member)
        for number, task in enumerate(tasks)
        for member in range(size)
    ]
    episodes = rollout_fn(specs)
    return [
        Group(
            id=f"{step}.{attempt}.{number}",
            episodes=tuple(episodes[number * size : (number + 1) * size]),
        )
        for number in range(len(tasks))
    ]


def require_tasks(tasks: Sequence[Task], *, step: int) -> None:
    """Raise ConfigError if the curriculum gave no task for a step."""
    if not tasks:
        raise ConfigError(
            f"curriculum: it has no task for step {step}, so nothing can be played; give it tasks, "
            "or let it request proposals"
        )
