"""The calls of a curriculum, which may be an author's own, and the checks of their results."""

from collections.abc import Sequence

from selfplay.author_code import naming, stated_list, stated_metrics
from selfplay.curriculum import Curriculum
from selfplay.types import Group, Task

WHERE = "curriculum"
"""Config key of a curriculum, for errors."""


def tasks_of(curriculum: Curriculum, step: int, attempt: int = 0) -> list[Task]:
    """Return the tasks of a step.

    Args:
        curriculum: The curriculum.
        step: The step.
        attempt: Number of refills of the step before this one.
    Raises:
        ConfigError: In one line that names the curriculum, for an error of an author's code, and
            for a result that is not a list of tasks.
    """
    name = _named(curriculum, "tasks")
    with naming(name, curriculum):
        tasks = curriculum.tasks(step, attempt)
    return stated_list(tasks, Task, name)


def show(curriculum: Curriculum, groups: Sequence[Group], step: int) -> None:
    """Let a curriculum observe the episodes of a step. Raises ConfigError as `tasks_of` does."""
    with naming(_named(curriculum, "observe"), curriculum):
        curriculum.observe(groups, step)


def is_ready(curriculum: Curriculum) -> bool:
    """Return False while a curriculum gathers its first tasks. Raises ConfigError as `tasks_of`
    does."""
    with naming(_named(curriculum, "ready"), curriculum):
        return curriculum.ready()


def metrics_of(curriculum: Curriculum) -> dict[str, float]:
    """Return the metrics of a curriculum; raise ConfigError for one that is not a number."""
    return stated_metrics(curriculum, WHERE)


def _named(curriculum: Curriculum, method: str) -> str:
    return f"{WHERE}: {type(curriculum).__name__}.{method}"
