"""The calls of a curriculum, which may be an author's own, and the checks of their results."""

from collections.abc import Mapping, Sequence

from selfplay.author_code import naming, stated_list, stated_metrics
from selfplay.curriculum import Curriculum
from selfplay.errors import ConfigError
from selfplay.types import Group, Task

WHERE = "curriculum"
"""Config key of a curriculum, for errors."""


def tasks_of(curriculum: Curriculum, step: int, attempt: int = 0) -> list[Task]:
    """Return the tasks of a step.

    Args:
        curriculum: The curriculum.
        step: The step.
        attempt: Number of earlier requests of tasks in this step.
    Raises:
        ConfigError: In one line that names the curriculum, for an error of an author's code, for a
            result that is not a list of tasks, and for a task with a field of a wrong type.
    """
    name = _named(curriculum, "tasks")
    with naming(name, curriculum):
        found = curriculum.tasks(step, attempt)
    tasks = stated_list(found, Task, name)
    for task in tasks:
        _check_fields(task, name)
    return tasks


def _check_fields(task: Task, call: str) -> None:
    """Raise ConfigError for a task with a field of another type than the class declares."""
    fields: Sequence[tuple[str, object, type, str]] = (
        ("id", task.id, str, "text"),
        ("type", task.type, str, "text"),
        ("payload", task.payload, Mapping, "mapping of names to plain data"),
    )
    for field, value, kind, words in fields:
        if not isinstance(value, kind):
            raise ConfigError(f"{call} returned a Task whose {field} is {value!r}, not a {words}")


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
