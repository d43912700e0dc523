"""Tasksets of the library `verifiers` (version 0.4), for arenas of questions.

A taskset has tasks, and rewards that score a reply. A task that has a prompt and needs neither
tools nor a container can be asked here: one solver, a debate or a pipeline answers it. The code of
a taskset is the user's choice, as the code of an arena is. It runs in processes of its own without
the sandbox, because it may load data from the network and ask models. Their interpreter can be that
of another environment: `verifiers` needs an older `openai` than this project. A task is plain data:
its payload has the question, and under `taskset` what the rewards need.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from importlib.util import find_spec
from queue import LifoQueue
from threading import Lock
from typing import Any, Literal, get_args
from weakref import finalize

from cachetools import LRUCache

from arenas.questions._reasoning_program import is_held_out
from arenas.questions._taskset_process import GRACE, TasksetError, TasksetProcess
from arenas.questions.arena import question_task
from selfplay.errors import ConfigError, check_choice
from selfplay.types import Task, well_formed

Split = Literal["all", "train", "held_out"]
REMEMBERED = 4096
"""Number of answers whose rewards are remembered."""
REPEATED = 10_000
"""Number of tasks in a row with known questions, after which reading ends."""
Errors = Literal["zero", "fail"]


class VerifiersTaskset:
    """Service that reads a taskset of `verifiers` and scores answers to its tasks.

    The config group `services` makes it; `tasks` and `TasksetVerifier` use it. Its processes start
    when they are needed.
    """

    def __init__(
        self,
        *,
        id: str,
        config: Mapping[str, Any] | None = None,
        folder: str = ".",
        python: str | None = None,
        runtime: Literal["subprocess"] | None = None,
        errors: Errors = "zero",
        most_errors: int = 20,
        workers: int = 1,
        answer_seconds: float = 60.0,
        load_seconds: float = 600.0,
    ) -> None:
        """Args:
        id: The taskset's id in `verifiers`, the name of an installed package or module.
        config: Settings of the taskset's own `TasksetConfig`.
        folder: Folder of the taskset's module, if it is not installed.
        python: Interpreter that has `verifiers` and the taskset; None: this one.
        runtime: Place in which rewards may run programs. None: nowhere, and a taskset that needs
            one is refused. subprocess: this machine, without isolation.
        errors: Result of an answer for which a reward, a metric or a judge raises an error or takes
            too long. zero: reward 0. fail: the episode fails, and nothing is learned from it.
        most_errors: Number of such answers in a row that ends the run.
        workers: Number of processes, and of answers that are scored at the same time.
        answer_seconds: Time limit of one answer's rewards, in seconds.
        load_seconds: Time limit of the start of a process, and of reading tasks, in seconds.
        """
        if min(workers, most_errors) < 1 or min(answer_seconds, load_seconds) <= 0:
            raise ValueError(
                "workers and most_errors are at least 1, answer_seconds and load_seconds above 0"
            )
        check_choice("errors", errors, get_args(Errors))
        if runtime not in (None, "subprocess"):
            raise ValueError(f"runtime is null or subprocess, not {runtime!r}")
        if python is None and find_spec("verifiers") is None:
            raise ConfigError(
                "taskset: needs the library verifiers; install it with the taskset in an "
                "environment of its own, and set services.taskset.python to its interpreter"
            )
        self.id, self.answer_seconds, self.load_seconds = id, answer_seconds, load_seconds
        self.errors, self.most_errors = errors, most_errors
        self.python = python or sys.executable
        self.settings: dict[str, Any] = {
            "id": id,
            "config": dict(config or {}),
            "folder": folder,
            "runtime": runtime,
        }
        self._processes = [
            TasksetProcess(python=self.python, settings=self.settings, load_seconds=load_seconds)
            for _ in range(workers)
        ]
        # The process that was used last comes first, so that the others start only when needed.
        self._idle: LifoQueue[TasksetProcess] = LifoQueue()
        for process in self._processes:
            self._idle.put(process)
        self._lock = Lock()
        self._counts: Counter[str] = Counter()
        self._failures = 0
        self._known: LRUCache[bytes, float] = LRUCache(REMEMBERED)
        self._finalizer = finalize(self, _kill, self._processes)

    @contextmanager
    def _process(self) -> Iterator[TasksetProcess]:
        """Lend a process with the taskset; raises ConfigError if it cannot be loaded."""
        process = self._idle.get()
        try:
            try:
                process.start()
            except TasksetError as error:
                raise self._unloaded(error) from error
            yield process
        finally:
            self._idle.put(process)

    def _unloaded(self, error: TasksetError) -> ConfigError:
        """Return the error of a taskset that cannot be read."""
        advice = ""
        if "named 'verifiers" in str(error):
            advice = f"; install verifiers 0.4 for {self.python}, or set services.taskset.python"
        elif error.reason == "timeout":
            advice = "; raise services.taskset.load_seconds"
        return ConfigError(f"taskset {self.id}: {error}{advice}")

    @contextmanager
    def part(self, config: Mapping[str, Any]) -> Iterator["VerifiersTaskset"]:
        """Lend a service that reads the taskset with other settings, in a process of its own.

        Args:
            config: Settings of the taskset's config, which replace those of this service.
        """
        settings = {**self.settings, "config": {**self.settings["config"], **config}}
        service = VerifiersTaskset(**settings, python=self.python, load_seconds=self.load_seconds)
        try:
            yield service
        finally:
            service.close()

    def questions(self, *, endless: bool = False) -> Iterator[Task]:
        """Yield the tasks in the taskset's order, each question once.

        Args:
            endless: True if the caller stops by itself; otherwise a taskset without end is refused.

        Raises ConfigError for a taskset that needs what an arena of questions does not have, such
        as tools, a container, a conversation or, without one, a runtime.
        """
        seen: set[str] = set()
        start, repeated, last = 0, 0, False
        with self._process() as process:
            while not last and repeated < REPEATED:
                try:
                    page = process.ask({"start": start}, self.load_seconds)
                except TasksetError as error:
                    process.close()  # a second try must not begin after the task that failed
                    raise self._unloaded(error) from error
                if not page["bounded"] and not endless:
                    raise ConfigError(
                        f"taskset {self.id}: it has no end; set the number of tasks (count)"
                    )
                start, last = start + len(page["tasks"]), page["last"]
                for each in page["tasks"]:
                    named = question_task(self.id, well_formed(each["question"]))
                    repeated += 1
                    if named.id not in seen:
                        seen.add(named.id)
                        repeated = 0
                        known = {"id": self.id, "data": each["data"]}
                        payload = {**named.payload, "taskset": known}
                        yield Task(id=named.id, type=named.type, payload=payload)

    def reward(self, reply: str, payload: Mapping[str, Any]) -> float:
        """Return the weighted sum of the rewards for a reply.

        Equal replies to a task are scored once, while they are remembered. If the rewards raise an
        error or take too long, the result is 0 or, with `errors: fail`, a ValueError. Raises
        ConfigError for a task of another source, and after `most_errors` such replies in a row.
        """
        known = payload.get("taskset")
        if not isinstance(known, Mapping) or known.get("id") != self.id:
            raise ConfigError(
                f"taskset {self.id}: a task has no data of this taskset, so its answers cannot be "
                "scored; use curriculum=taskset, or another verifier"
            )
        request = {
            "data": known.get("data"),
            "answer": well_formed(reply),
            "seconds": self.answer_seconds,
        }
        name = blake2b(json.dumps(request, sort_keys=True).encode()).digest()
        with self._lock:
            if name in self._known:
                self._counts["remembered"] += 1
                return self._known[name]
        with self._process() as process:
            try:
                found = float(process.ask(request, self.answer_seconds + GRACE)["reward"])
            except TasksetError as error:
                self._failed(error)
                return 0.0
        with self._lock:
            self._counts["scored"] += 1
            self._failures = 0
            self._known[name] = found
        return found

    def _failed(self, error: TasksetError) -> None:
        """Count an answer without a score; raise an error if it may not be 0."""
        with self._lock:
            self._counts[error.reason] += 1
            self._failures += 1
            if self._failures >= self.most_errors:
                raise ConfigError(
                    f"taskset {self.id}: {self.most_errors} answers in a row have no score "
                    f"(services.taskset.most_errors); the last one: {error}"
                ) from error
        if self.errors == "fail":
            raise ValueError(f"taskset {self.id}: an answer has no score: {error}") from error

    def drain_metrics(self) -> dict[str, int]:
        """Return the numbers of answers by outcome since the last call."""
        with self._lock:
            drained = dict(self._counts)
            self._counts.clear()
        return drained

    def close(self) -> None:
        """End the processes; a later use starts them again."""
        _kill(self._processes)
        idle: list[TasksetProcess] = []
        while not self._idle.empty():
            idle.append(self._idle.get())
        for process in idle:
            process.close()
            self._idle.put(process)


def _kill(processes: list[TasksetProcess]) -> None:
    for process in processes:
        process.kill()


class TasksetVerifier:
    """Verifier that scores an answer with the rewards of its taskset."""

    blocking = True

    def __init__(
        self, *, taskset: VerifiersTaskset, form: str = "{answer}", best: float = 1.0
    ) -> None:
        """Args:
        taskset: The service of this name.
        form: Reply that the rewards read; `{answer}` stands for the answer. A taskset may look for
            its answer in a form of its own, such as `\\boxed{{answer}}`.
        best: Reward that has the score 1. The score is the reward divided by `best`, limited to
            [0, 1].
        """
        if form.count("{answer}") != 1:
            raise ValueError(f"form: {form!r} does not contain {{answer}} once")
        if best <= 0:
            raise ValueError(f"best is above 0, not {best}")
        self.taskset, self.form, self.best = taskset, form, best

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """Return the score; raises ConfigError for a task of another source."""
        reward = self.taskset.reward(self.form.replace("{answer}", answer), payload)
        return min(max(reward / self.best, 0.0), 1.0)


def tasks(
    *,
    taskset: VerifiersTaskset,
    split: Split = "all",
    count: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> list[Task]:
    """Return tasks of a taskset in its order, each question once.

    Args:
        taskset: The service of this name.
        split: held_out: one question in five, chosen by a hash of its text. train: the others.
            all: both.
        count: Number of tasks; None: all. An infinite taskset needs a number.
        config: Settings of the taskset's own config, which replace those of the service, such as
            {"split": "test"} for a taskset that has a test split. Answers are scored with the
            settings of the service.

    Raises:
        ConfigError: For a taskset that cannot be asked here, or that has fewer than `count` tasks.
    """
    check_choice("split", split, get_args(Split))
    if count is not None and count < 1:
        raise ValueError(f"count is at least 1, not {count}")
    if config:
        with taskset.part(config) as part:
            return tasks(taskset=part, split=split, count=count)
    found: list[Task] = []
    for task in taskset.questions(endless=count is not None):
        if split == "all" or is_held_out(task.payload["question"]) == (split == "held_out"):
            found.append(task)
            if len(found) == count:
                return found
    if count is not None or not found:
        raise ConfigError(
            f"taskset {taskset.id}: the split {split} has {len(found)} different questions"
            + (f", not {count}; lower count, or take the split all" if count else "")
        )
    return found
