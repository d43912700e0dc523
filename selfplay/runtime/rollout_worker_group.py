"""Driver side of the rollout workers: dispatches jobs, collects episodes, restarts dead workers."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from threading import Lock
from typing import Any

from selfplay.errors import LearnersLost, RunError, one_line
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.run.activity import ACTIVITY, Tally
from selfplay.runtime.cluster import TICK, RayCluster, ours
from selfplay.runtime.engine_worker import LostWorker, WorkerConfig
from selfplay.runtime.rollout_worker import RolloutResult, RolloutWorker
from selfplay.runtime.updatable_engine import EngineDied
from selfplay.runtime.weight_sync import Change, SyncState
from selfplay.runtime.worker_book import WorkerBook
from selfplay.types import Episode

FAREWELL = 10.0
"""Seconds in which workers end the processes that they started."""
PLAY, FETCH, LISTEN = "play", "fetch", "listen"
"""Names of a worker's threads."""


@dataclass(kw_only=True, eq=False)
class _Member:
    """One worker of the fixed number, and its replacements after a death."""

    bundle: int
    """Index of its resources in the cluster."""
    actor: Any = None
    """Ray actor; None before the start and after a death."""
    chunk: int | None = None
    """Index of the chunk that it plays; None while it is idle."""
    result: Any = None
    """Reference to the result of the chunk."""
    steps: int | None = None
    """Last known number of its engine's steps."""
    loaded: bool = False
    """True if its models and its engine are loaded."""
    heard: float = 0.0
    """Monotonic time at which its number of steps last changed."""
    asked: Any = None
    """Reference to the answer to the open question for its number of steps."""


class RolloutWorkers:
    """Dispatches jobs to rollout workers and replaces workers that die or hang.

    Takes exactly one episode per job: results of a replaced worker are ignored.
    """

    def __init__(
        self,
        cluster: RayCluster,
        *,
        count: int,
        chunks: int,
        timeout: float,
        max_restarts: int,
        load_timeout: float = 0.0,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        """Args:
        cluster: The cluster; its first `count` bundles are for the workers.
        count: Number of workers.
        chunks: Number of chunks per worker that a list of jobs is divided into.
        timeout: Seconds without an engine step after which a worker counts as hanging.
        max_restarts: Maximum number of worker deaths per chunk before the run ends.
        load_timeout: Seconds in which a new worker loads its models and its engine, at least
            `timeout`.
        resources: Each worker's part of its bundle; None: the whole bundle.
        """
        self._resources = resources
        self.cluster, self.chunks = cluster, chunks
        self.timeout, self.max_restarts = timeout, max_restarts
        self.load_timeout = load_timeout
        self._members = [_Member(bundle=number) for number in range(count)]
        self._present, self._telling = SyncState(), Lock()
        self._playing, self._closed = Lock(), False
        self._book = WorkerBook()
        self._brief: Callable[[], WorkerConfig] | None = None

    def start(self, brief: Callable[[], WorkerConfig]) -> None:
        """Start all workers without waiting for them.

        Args:
            brief: Makes the settings of a new worker; the updates so far are filled in.
        """
        self._brief = brief
        self._fill()

    def tell(self, change: Change) -> None:
        """Send an update to all workers and to their later replacements."""
        with self._telling:
            self._present.book(change)
            for member in self._members:
                if member.actor is not None:
                    self._ask(member, "tell", self._present.number, change, group=FETCH)

    def run(
        self,
        jobs: Sequence[EpisodeSpec],
        evaluation: str | None = None,
        *,
        first: Callable[[], None] = lambda: None,
    ) -> list[Episode]:
        """Play jobs and return their episodes in the same order.

        Args:
            jobs: The jobs; other callers wait until all of these are played.
            evaluation: Name of the evaluation whose rollout plays; None: that of training.
            first: Called when these jobs' turn begins, such as to send the state they need.

        Raises what a worker raised, and RunError if too many workers die over the same jobs.
        """
        # One call at a time. A caller that waits here does so for a limited time, because every
        # wait of the other call has a timeout.
        with self._playing:
            try:
                self.cluster.check(now=True)
                first()
                self._fill()
                chunks = list(cut(jobs, len(self._members) * self.chunks))
                with ACTIVITY.counting("episodes", len(jobs)) as tally:
                    return self._play(chunks, evaluation, tally)
            finally:
                # After an error other workers may still be playing; their results are ignored.
                for member in self._members:
                    member.chunk = member.result = None

    def rest(self) -> None:
        """Let all workers leave their GPUs to the ranks, and wait until they have.

        A worker that died, failed or does not answer is ended, and replaced before the next jobs.
        """
        asked = {
            self._ask(member, "rest", group=PLAY): member
            for member in self._members
            if member.actor is not None
        }
        patience = max(map(self._limit, asked.values()), default=0.0)
        waiting, lost, end = list(asked), [], time.monotonic() + patience
        while waiting and time.monotonic() < end:
            ready, waiting = self.cluster.ray.wait(waiting, timeout=TICK)
            self.cluster.check()
            for answer in ready:
                try:
                    self.cluster.ray.get(answer)
                    asked[answer].loaded = True  # it began before it rested
                except self.cluster.ray.exceptions.RayError:
                    lost.append(answer)
        for answer in (*lost, *waiting):
            self._book.deaths += 1
            self._give_up(asked[answer])

    def counts(self) -> dict[str, float]:
        """Return worker deaths, resubmitted jobs, and metrics of services and engines."""
        book, self._book = self._book, WorkerBook()
        return {
            "runtime/worker_deaths": float(book.deaths),
            "runtime/resubmitted_jobs": float(book.resubmitted),
            **book.elsewhere,
        }

    def close(self) -> None:
        """End all workers and the processes that they started."""
        self._closed = True
        actors = [member.actor for member in self._members if member.actor is not None]
        try:
            idle = [m for m in self._members if m.actor is not None and m.chunk is None]
            farewells = [self._ask(member, "close", group=PLAY) for member in idle]
            if farewells and not self.cluster.dead:
                self.cluster.ray.wait(farewells, num_returns=len(farewells), timeout=FAREWELL)
        finally:
            for actor in actors:
                self.cluster.kill(actor)
            # Ray must not shut down while another thread is still in one of its calls.
            if self._playing.acquire(timeout=FAREWELL):
                self._playing.release()

    def _fill(self) -> None:
        """Start a worker in every place without one."""
        for member in self._members:
            if member.actor is None:
                self._replace(member)

    def _replace(self, member: _Member) -> None:
        assert self._brief is not None, "no worker was started"
        if self._closed:
            raise RunError("runtime: closed while jobs were being played")
        groups, brief = {PLAY: 1, FETCH: 1, LISTEN: 1}, self._brief()
        with self._telling:
            now = self._present
            brief = replace(brief, number=now.number, changes=now.changes())
            member.actor = self.cluster.actor(
                RolloutWorker, bundle=member.bundle, groups=groups, resources=self._resources
            )
            self._ask(member, "begin", brief, group=PLAY)

    def _give_up(self, member: _Member) -> None:
        """End a worker and ignore its results."""
        self.cluster.kill(member.actor)
        with self._telling:  # `tell` must not reach a worker that is being removed
            member.actor = member.chunk = member.result = member.asked = None
            member.loaded = False

    def _ask(self, member: _Member, method: str, *arguments: Any, group: str) -> Any:
        return getattr(member.actor, method).options(concurrency_group=group).remote(*arguments)

    def _play(
        self, chunks: Sequence[Sequence[EpisodeSpec]], evaluation: str | None, tally: Tally
    ) -> list[Episode]:
        waiting, done = deque(range(len(chunks))), dict[int, Sequence[Episode]]()
        deaths = Counter[int]()
        number = self._present.number
        while len(done) < len(chunks):
            for member in self._members:
                if member.chunk is None and waiting:
                    self._submit(member, waiting.popleft(), chunks, evaluation, number)
            for member in self._finished():
                assert member.chunk is not None
                why = self._take(member, done, evaluation, tally)
                if why is None:
                    continue
                self.cluster.check(now=True)  # the calls below need Ray's head
                chunk = member.chunk
                # Deaths are counted per chunk: many workers may die at once with their machine.
                deaths[chunk] += 1
                self._book.deaths += 1
                self._book.resubmitted += len(chunks[chunk])
                waiting.appendleft(chunk)
                self._give_up(member)
                if deaths[chunk] > self.max_restarts:
                    raise RunError(
                        f"runtime: {deaths[chunk]} workers died over the same jobs "
                        f"(runtime.max_restarts is {self.max_restarts}); the last one: {why}"
                    )
                self._replace(member)
        return [episode for index in range(len(chunks)) for episode in done[index]]

    def _submit(
        self,
        member: _Member,
        index: int,
        chunks: Sequence[Sequence[EpisodeSpec]],
        evaluation: str | None,
        number: int,
    ) -> None:
        member.chunk, member.heard, member.steps = index, time.monotonic(), None
        jobs = list(chunks[index])
        member.result = self._ask(member, "run", jobs, evaluation, number, group=PLAY)

    def _finished(self) -> list[_Member]:
        """Return the workers with a result or an error, and those that hang."""
        busy = {member.result: member for member in self._members if member.chunk is not None}
        ready, _ = self.cluster.ray.wait(list(busy), num_returns=len(busy), timeout=0)
        if not ready:
            ready, _ = self.cluster.ray.wait(list(busy), timeout=min(TICK, self.timeout / 4))
        self.cluster.check()
        finished = [busy[result] for result in ready]
        now = time.monotonic()
        for member in busy.values():
            silent = now - self._last_heard(member, now)
            if member not in finished and silent > self._limit(member):
                finished.append(member)
        return finished

    def _limit(self, member: _Member) -> float:
        """Return the number of silent seconds after which a worker counts as hanging."""
        return self.timeout if member.loaded else max(self.timeout, self.load_timeout)

    def _last_heard(self, member: _Member, now: float) -> float:
        """Return the time at which a worker's number of engine steps last changed."""
        if member.asked is None:
            member.asked = self._ask(member, "steps", group=LISTEN)
        answered, _ = self.cluster.ray.wait([member.asked], timeout=0)
        if answered:
            steps = self._sign(member.asked)
            if steps != member.steps:
                member.steps, member.heard = steps, now
                member.loaded = member.loaded or (steps is not None and steps >= 0)
            member.asked = None
        return member.heard

    def _sign(self, question: Any) -> int | None:
        try:
            steps: int = self.cluster.ray.get(question, timeout=self.timeout)
            return steps
        except self.cluster.ray.exceptions.RayError:
            return None  # the worker died; its result shows it

    def _take(
        self,
        member: _Member,
        done: dict[int, Sequence[Episode]],
        evaluation: str | None,
        tally: Tally,
    ) -> str | None:
        """Take a worker's result; return the reason if the worker failed, else None."""
        exceptions = self.cluster.ray.exceptions
        assert member.chunk is not None
        try:
            played: RolloutResult = self.cluster.ray.get(member.result, timeout=0)
        except exceptions.GetTimeoutError:
            if not member.loaded:
                return f"not loaded after {self._limit(member):g} s (runtime.load_timeout)"
            return f"no engine step for {self.timeout:g} s (runtime.timeout)"
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, EngineDied):
                return f"its engine failed: {error.cause}"
            if isinstance(error.cause, LostWorker):
                return str(error.cause)
            if isinstance(error.cause, LearnersLost):
                self._give_up(member)  # it waits for weights that do not exist any more
            raise ours(error) from None
        except exceptions.RayError as error:
            return one_line(error)
        done[member.chunk] = played.episodes
        turns = (turn for episode in played.episodes for turn in episode.turns)
        tally.add(len(played.episodes), tokens=sum(len(turn.completion_ids) for turn in turns))
        if evaluation is None:  # metrics of training only
            self._book.add(played.counts)
        member.chunk = member.result = None
        return None


def cut(jobs: Sequence[EpisodeSpec], count: int) -> Iterator[list[EpisodeSpec]]:
    """Divide jobs into at most `count` chunks of similar length.

    Jobs with the same task and seed stay in one chunk.
    """
    groups = [list(group) for _, group in groupby(jobs, key=lambda job: (job.task.id, job.seed))]
    piece: list[EpisodeSpec] = []
    passed = pieces = 0
    for group in groups:
        piece += group
        passed += len(group)
        if passed * count >= (pieces + 1) * len(jobs):
            yield piece
            piece = []
            pieces = passed * count // len(jobs)
    if piece:
        yield piece
