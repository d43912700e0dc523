"""Sends runs to the warmed processes from one thread, and replaces lost processes.

A warmed process (`selfplay.sandbox.fork_server`) is isolated once and forks a fresh process for
every run. A lane is the set of warmed processes with one hash seed.
"""

import contextlib
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from selfplay.errors import SelfplayError
from selfplay.sandbox.process import (
    Limits,
    LostError,
    SandboxProcess,
    configuration,
    encoded,
    judged,
)
from selfplay.sandbox.types import FINAL, Call, FailureReason, Outcome, failure

# One pair for the whole pool, so that a verdict does not depend on the scheduling of processes.
HASH_SEEDS = (1, 2)
_AHEAD = 2  # requests per process, so that it need not wait between two runs
_ATTEMPTS = 2  # attempts of a run whose warmed process is lost


class ClosedError(SelfplayError):
    """Raised if the executor is closed while a run waits."""


@dataclass(kw_only=True)
class CallBatch:
    """The runs of one `Executor.run`, filled in as they end."""

    outcomes: list[list[Outcome | None]]
    """Outcomes by call and replica; None before the end of the run."""
    left: int
    """Number of calls without a verdict."""
    done: threading.Event = field(default_factory=threading.Event)
    """Event that is set when all calls have a verdict, or after an error."""
    error: BaseException | None = None
    """Error that `Dispatcher.run` raises; None without one."""


@dataclass(kw_only=True, eq=False)
class SandboxJob:
    """One run of a call, with its position in a batch and its number of failed attempts."""

    batch: CallBatch
    """Batch of the call."""
    index: int
    """Index of the call in the batch."""
    replica: int
    """Index of the run among the runs of the call."""
    request: bytes
    """Request to the warmed process, made by `encoded`."""
    lane: int
    """Index of the lane."""
    attempts: int = 0
    """Number of attempts that ended because the warmed process was lost."""


class Dispatcher:
    """Two lanes of warmed processes, one per hash seed, and the thread that drives them."""

    def __init__(self, limits: Limits, workers: int) -> None:
        """Start `workers` processes per lane; raises IsolationError."""
        self._limits = limits
        self._configuration = configuration(limits)
        self._lanes: tuple[deque[SandboxJob], ...] = tuple(deque() for _ in HASH_SEEDS)
        self._replies: deque[tuple[SandboxJob, bytes]] = deque()
        self._lock = threading.RLock()  # `close` may run as a finalizer in any thread
        self._closing = False
        self._owner = os.getpid()
        self._workers: list[tuple[int, SandboxProcess[SandboxJob]]] = []
        try:
            for _ in range(workers):
                for lane in range(len(HASH_SEEDS)):
                    self._workers.append((lane, self._started(lane)))
            for _, worker in self._workers:
                worker.wait()
        except BaseException:
            for _, worker in self._workers:
                worker.close()
            raise
        self._waker, self._wakened = socket.socketpair()
        self._waker.setblocking(False)
        self._wakened.setblocking(False)
        # A daemon, so that a forgotten executor cannot keep the interpreter from ending.
        self._thread = threading.Thread(target=self._drive, name="executor", daemon=True)
        self._thread.start()

    def _started(self, lane: int) -> SandboxProcess[SandboxJob]:
        return SandboxProcess(self._limits, self._configuration, HASH_SEEDS[lane])

    @property
    def usable(self) -> bool:
        """False after `close`, after the thread died, and in a forked copy of this process."""
        return not self._closing and self._owner == os.getpid() and self._thread.is_alive()

    def run(self, calls: Sequence[tuple[Call, str]], runs: int) -> list[list[Outcome]]:
        """Run every call with its canonical arguments; block until all have ended.

        A call is run `runs` times, one run after another, in alternating lanes; the first lane
        depends only on the call. A run whose reason is in `FINAL` is the call's last one.

        Returns:
            The outcomes of the runs of each call, in the order of `calls`.
        Raises:
            ClosedError: If the dispatcher is closed before all have ended.
        """
        batch = CallBatch(outcomes=[[None] * runs for _ in calls], left=len(calls))
        jobs: list[SandboxJob] = []
        for index, (call, arguments) in enumerate(calls):
            request = encoded(call, arguments)
            lane = blake2b(request, digest_size=1).digest()[0] % len(HASH_SEEDS)
            jobs.append(SandboxJob(batch=batch, index=index, replica=0, request=request, lane=lane))
        with self._lock:
            if self._closing:
                raise ClosedError("executor: closed; make a new one")
            for job in jobs:
                self._lanes[job.lane].append(job)
        if jobs:
            self._wake()
            batch.done.wait()
        if batch.error is not None:
            raise batch.error
        return [[outcome for outcome in row if outcome is not None] for row in batch.outcomes]

    def close(self) -> None:
        """End the thread and the processes; waiting runs raise ClosedError."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        if self._owner != os.getpid():
            for _, worker in self._workers:  # a forked copy does not own the processes
                worker.disown()
            return
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._waker.close()
        self._wakened.close()

    def _wake(self) -> None:
        # A full socket means that the thread has been woken already.
        with contextlib.suppress(BlockingIOError):
            self._waker.send(b"\0")

    def _drive(self) -> None:
        error: BaseException = ClosedError("executor: closed while a run was waiting")
        try:
            while not self._closing:
                self._turn()
        except BaseException as cause:  # `run` raises it again in every waiting thread
            error = cause
        with self._lock:
            self._closing = True
            jobs = [job for lane in self._lanes for job in lane]
        jobs.extend(job for job, _ in self._replies)
        for _, worker in self._workers:
            jobs.extend(worker.jobs)
            worker.close()
        for job in jobs:
            job.batch.error = error
            job.batch.done.set()

    def _turn(self) -> None:
        """Wait for an event, then dispatch waiting runs."""
        poller = select.poll()
        poller.register(self._wakened, select.POLLIN)
        indices = {}
        wait = float("inf")
        for index, (_, worker) in enumerate(self._workers):
            poller.register(
                worker.descriptor, select.POLLIN | (select.POLLOUT if worker.unsent else 0)
            )
            indices[worker.descriptor] = index
            wait = min(wait, worker.seconds_left)
        events = poller.poll(None if wait == float("inf") else max(0.0, wait) * 1000 + 1)
        if any(descriptor == self._wakened.fileno() for descriptor, _ in events):
            self._wakened.recv(4096)
        for descriptor, event in events:
            if descriptor in indices:
                self._serve(indices[descriptor], event)
        for index, (_, worker) in enumerate(self._workers):
            if worker.seconds_left <= 0:
                self._replace(index)
        self._feed_all()
        # Replies are judged last, while the processes are busy again.
        answered = bool(self._replies)
        while self._replies:
            job, reply = self._replies[0]  # `_drive` ends the job if this thread fails
            self._finish(job, judged(reply, self._limits))
            self._replies.popleft()
        if answered:
            self._feed_all()  # a call's next run waits for its first one

    def _serve(self, index: int, event: int) -> None:
        worker = self._workers[index][1]
        try:
            if event & select.POLLOUT:
                worker.flush()
            if event & ~select.POLLOUT:
                self._replies.extend(worker.receive())
        except LostError:
            self._replace(index)

    def _feed_all(self) -> None:
        places = [(index, ahead) for ahead in (1, _AHEAD) for index in range(len(self._workers))]
        while not all(self._feed(index, ahead) for index, ahead in places):
            pass  # the runs of a process that was replaced wait again

    def _feed(self, index: int, ahead: int) -> bool:
        """Queue up to `ahead` runs at a process; return False if it was lost and is replaced."""
        lane, worker = self._workers[index]
        # The last jobs of a lane wait for a free process instead of queueing after a long job.
        spare = 0 if ahead == 1 else len(self._workers)
        while len(worker.jobs) < ahead:
            with self._lock:
                if len(self._lanes[lane]) <= spare:
                    return True
                job = self._lanes[lane].popleft()
            try:
                worker.submit(job, job.request)
            except LostError:
                self._replace(index)
                return False
        return True

    def _replace(self, index: int) -> None:
        """Replace a lost process by a new one; its current run is attempted once more."""
        lane, lost = self._workers[index]
        jobs = list(lost.jobs)
        lost.jobs.clear()
        lost.close()
        waiting: list[SandboxJob] = []
        for position, job in enumerate(jobs):
            job.attempts += position == 0  # the others had not begun
            if job.attempts < _ATTEMPTS:
                waiting.append(job)
            else:
                detail = "the process that runs programs ended twice while it ran this one"
                self._finish(job, failure(FailureReason.KILLED, detail))
        with self._lock:
            self._lanes[lane].extendleft(reversed(waiting))
        fresh = self._started(lane)
        fresh.wait()
        self._workers[index] = (lane, fresh)

    def _finish(self, job: SandboxJob, outcome: Outcome) -> None:
        batch, row = job.batch, job.batch.outcomes[job.index]
        row[job.replica] = outcome
        if outcome.reason not in FINAL and job.replica + 1 < len(row):
            lane = (job.lane + 1) % len(HASH_SEEDS)
            following = replace(job, replica=job.replica + 1, lane=lane, attempts=0)
            with self._lock:
                self._lanes[lane].append(following)
            return
        batch.left -= 1
        if batch.left == 0:
            batch.done.set()
