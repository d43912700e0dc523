"""Driver side of the rollout workers: dispatches jobs, collects episodes, restarts dead workers."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from selfplay.errors import RunError
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.run.activity import ACTIVITY, Tally
from selfplay.runtime.cluster import TICK, RayCluster
from selfplay.runtime.engine_worker_group import LISTEN, PLAY, EngineWorkerGroup, WorkerMember
from selfplay.runtime.rollout_worker import RolloutResult, RolloutWorker
from selfplay.runtime.weight_sync import Change
from selfplay.types import Episode


@dataclass(kw_only=True, eq=False)
class _Member(WorkerMember):
    """A worker that plays chunks of jobs."""

    chunk: int | None = None
    """Index of the chunk that it plays; None while it is idle."""
    steps: int | None = None
    """Last known number of its engine's steps."""
    heard: float = 0.0
    """Monotonic time at which its number of steps last changed."""
    asked: Any = None
    """Reference to the answer to the open question for its number of steps."""


class RolloutWorkers(EngineWorkerGroup[_Member]):
    """Dispatches jobs to rollout workers and replaces workers that die or hang.

    Takes exactly one episode per job: results of a replaced worker are ignored.
    """

    worker = RolloutWorker
    again = "resubmitted_jobs"

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
        cluster, timeout, max_restarts, load_timeout, resources: See `EngineWorkerGroup`.
        count: Number of workers.
        chunks: Number of chunks per worker that a list of jobs is divided into.
        """
        super().__init__(
            cluster,
            [_Member(bundle=number) for number in range(count)],
            timeout=timeout,
            load_timeout=load_timeout,
            max_restarts=max_restarts,
            resources=resources,
        )
        self.chunks = chunks

    def tell(self, change: Change) -> None:
        """Send an update to all workers and to their later replacements."""
        self._tell(0, change)

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
            self._ask(member, "rest", thread=PLAY): member
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

    def _give_up(self, member: _Member) -> None:
        super()._give_up(member)
        member.chunk = member.asked = None

    def _play(
        self, chunks: Sequence[Sequence[EpisodeSpec]], evaluation: str | None, tally: Tally
    ) -> list[Episode]:
        waiting, done = deque(range(len(chunks))), dict[int, Sequence[Episode]]()
        deaths = Counter[int]()
        number = self._present[0].number
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
                self._start(member)
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
        member.result = self._ask(member, "run", jobs, evaluation, number, thread=PLAY)

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

    def _last_heard(self, member: _Member, now: float) -> float:
        """Return the time at which a worker's number of engine steps last changed."""
        if member.asked is None:
            member.asked = self._ask(member, "steps", thread=LISTEN)
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
        assert member.chunk is not None
        played, why = self._result(member)
        if why is not None:
            return why
        assert isinstance(played, RolloutResult)
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
