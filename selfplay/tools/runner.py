"""Runs tool calls in threads, so that a slow tool delays only the agent that called it."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, RLock, Thread
from typing import Generic, TypeVar

Key = TypeVar("Key")
Result = TypeVar("Result")

MOST_STUCK = 8
"""Number of overdue calls of one tool, still running, from which on its other calls are refused."""
IDLE_SECONDS = 10.0
"""Seconds without a call after which a thread ends."""


@dataclass(eq=False, kw_only=True)
class _Job(Generic[Key, Result]):
    """A call that waits or runs."""

    key: Key
    name: str
    """Name of the tool."""
    seconds: float
    """Time limit from the start of the call."""
    work: Callable[[], Result]
    overdue: Callable[[], Result]
    """Makes the result of a call that took too long."""
    stuck: Callable[[], Result]
    """Makes the result of a call that is refused because its tool is stuck."""
    started: float = 0.0
    """Monotonic time of the start."""
    left: bool = False
    """True if the call took too long, so that its thread is left alone."""


@dataclass(kw_only=True)
class ToolRunner(Generic[Key, Result]):
    """Runs calls in daemon threads, with a time limit for each.

    A rollout has one. Threads run one call after the other, because the start of a thread waits
    until the new thread runs: some milliseconds on a busy machine, in which no engine samples.
    Python cannot end a thread, so a call that takes too long is answered without its result, and
    its thread is left alone; another thread takes its place. A tool with `MOST_STUCK` such threads
    is not called again until one of them returns.
    """

    threads: int = 64
    """Maximum number of calls that run at once."""
    _waiting: "deque[_Job[Key, Result]]" = field(default_factory=deque)
    _running: "dict[_Job[Key, Result], None]" = field(default_factory=dict)
    _done: "deque[tuple[Key, Result | BaseException]]" = field(default_factory=deque)
    _stuck: "Counter[str]" = field(default_factory=Counter)
    _started: "deque[_Job[Key, Result]]" = field(default_factory=deque)
    """Calls that no thread has taken yet."""
    _idle: int = 0
    """Number of threads that wait for a call, or begin to."""

    def __post_init__(self) -> None:
        lock = RLock()
        self._changed, self._work = Condition(lock), Condition(lock)

    def submit(
        self,
        key: Key,
        *,
        name: str,
        seconds: float,
        work: Callable[[], Result],
        overdue: Callable[[], Result],
        stuck: Callable[[], Result],
    ) -> None:
        """Queue a call, which starts as soon as a thread is free.

        Args:
            key: Returned with the result.
            name: Name of the tool.
            seconds: Time limit, from the start of the call.
            work: Makes the result, in a thread.
            overdue: Makes the result of a call that took too long.
            stuck: Makes the result of a call that is refused, because the tool is stuck.
        """
        with self._changed:
            self._waiting.append(
                _Job(key=key, name=name, seconds=seconds, work=work, overdue=overdue, stuck=stuck)
            )
            self._start()

    def collect(self, *, wait: float = 0.0) -> list[tuple[Key, Result]]:
        """Return (key, result) of the calls that ended; raise the error of a call that raised one.

        Args:
            wait: Seconds to wait for a result if there is none.
        """
        until = time.monotonic() + wait
        with self._changed:
            while True:
                now = time.monotonic()
                self._give_up(now)
                self._start()
                if self._done or not (self._waiting or self._running) or now >= until:
                    break
                ends = [job.started + job.seconds for job in self._running]
                self._changed.wait(max(0.0, min([until, *ends]) - now) + 1e-3)
            finished, self._done = list(self._done), deque()
        results = []
        for key, result in finished:
            if isinstance(result, BaseException):
                raise result
            results.append((key, result))
        return results

    def clear(self) -> None:
        """Forget all calls; those that run are left alone."""
        with self._changed:
            for job in self._running:
                job.left = True
                self._stuck[job.name] += 1
            self._waiting.clear()
            self._running.clear()
            self._done.clear()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self.threads:
            job = self._waiting.popleft()
            if self._stuck[job.name] >= MOST_STUCK:
                self._done.append((job.key, job.stuck()))
                continue
            job.started = time.monotonic()
            self._running[job] = None
            self._started.append(job)
            if len(self._started) > self._idle:
                self._idle += 1
                Thread(target=self._serve, name="tools", daemon=True).start()
            else:
                self._work.notify()

    def _give_up(self, now: float) -> None:
        """Answer the calls that took too long, and leave their threads alone."""
        for job in [job for job in self._running if now - job.started > job.seconds]:
            del self._running[job]
            job.left = True
            self._stuck[job.name] += 1
            self._done.append((job.key, job.overdue()))

    def _serve(self) -> None:
        """Run calls until none comes for a while."""
        while True:
            with self._work:
                while not self._started:
                    if not self._work.wait(IDLE_SECONDS) and not self._started:
                        self._idle -= 1
                        return
                self._idle -= 1
                job = self._started.popleft()
            self._run(job)
            with self._work:
                self._idle += 1

    def _run(self, job: "_Job[Key, Result]") -> None:
        result: Result | BaseException
        try:
            result = job.overdue() if job.left else job.work()
        except BaseException as error:  # raised again by `collect`, in the rollout's thread
            result = error
        with self._changed:
            if job.left:
                self._stuck[job.name] -= 1
                return
            del self._running[job]
            self._done.append((job.key, result))
            self._start()
            self._changed.notify_all()
