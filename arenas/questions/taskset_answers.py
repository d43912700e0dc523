"""Demonstrations of the answers that the tasks of a taskset of `verifiers` hold.

A small language model may never write an answer that the rewards read, so it is never paid. A short
warm start on these demonstrations shows the form. They are made from a field of each task's own
data, such as the reference answer.
"""

from collections.abc import Callable, Iterator
from random import Random

from arenas.questions.arena import question_view
from arenas.questions.taskset import VerifiersTaskset, tasks
from selfplay.arena.demonstrations import ExampleSource
from selfplay.errors import ConfigError
from selfplay.types import Demonstration, Task


class TasksetAnswers(ExampleSource):
    """Stream of the answers in a field of the tasks, for questions that are not held out."""

    def __init__(
        self,
        *,
        taskset: VerifiersTaskset,
        field: str = "answer",
        count: int | None = None,
        form: str = "{answer}",
        role: str = "solver",
    ) -> None:
        """Args:
        taskset: The service that reads the tasks. It is closed after its only use.
        field: Name of a field of the task's data: a text or a number.
        count: Number of tasks; None: all of the training split.
        form: Text of an answer; `{answer}` stands for the field.
        role: Role that answers.
        """
        if form.count("{answer}") != 1:
            raise ValueError(f"form: {form!r} does not contain {{answer}} once")
        self.taskset, self.field, self.count = taskset, field, count
        self.form, self.role = form, role
        self._shown: list[Demonstration] = []

    def prepare(self, report: Callable[[str], None]) -> None:
        """Read the tasks, once. Raises ConfigError for a task without the field."""
        if not self._shown:
            found = tasks(taskset=self.taskset, split="train", count=self.count)
            self.taskset.close()
            self._shown = [self._demonstration(task) for task in found]
            report(
                f"warm start: field {self.field} of {len(self._shown):,} tasks of the taskset "
                f"{self.taskset.id}"
            )

    def _demonstration(self, task: Task) -> Demonstration:
        data = task.payload["taskset"]["data"]
        answer = data.get(self.field)
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise ConfigError(
                f"warm start: a task of the taskset {self.taskset.id} has no text or number under "
                f"{self.field!r} (warmstart.examples.field); it has {', '.join(sorted(data))}"
            )
        return Demonstration(
            role=self.role,
            observation=question_view(task.payload["question"]),
            completion=self.form.replace("{answer}", str(answer)),
        )

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end: all tasks in random order, again and again."""
        self.prepare(lambda text: None)
        while True:
            yield from rng.sample(self._shown, len(self._shown))
