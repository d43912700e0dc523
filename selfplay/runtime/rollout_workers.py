"""The workers of a run, seen from the driver: jobs go out, episodes come back, deaths are borne.

What stands in the driver for the engines of its workers.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from threading import Lock
from typing import Any

from transformers import PreTrainedModel

from selfplay.errors import RunError, one_line
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.runtime.cluster import TICK, RayCluster, ours
from selfplay.runtime.rollout_worker import (
    EngineDied,
    LostWorker,
    RolloutResult,
    RolloutWorker,
    WorkerConfig,
)
from selfplay.runtime.weight_sync import (
    AddPolicy,
    Change,
    OffloadPolicy,
    RemovePolicy,
    SyncState,
    UpdateWeights,
    pack,
)
from selfplay.types import Completion, Episode, Request


class RemoteEngine:
    """A serving engine that samples nothing itself: every worker is told, and serves.

    Only what learns is sent: an adapter without its base, and nothing of a frozen policy, which
    every worker has read from the same files.
    """

    def __init__(self, *, tell: Callable[[Change], None], put: Callable[[Any], Any]) -> None:
        """Args:
        tell: Sends a change to all workers, those to come included.
        put: Makes an object known to the cluster; returns a reference to it.
        """
        self._tell, self._put = tell, put
        self._learned: dict[str, list[str]] = {}
        self.seconds = 0.0
        """Spent on publishing."""

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        """Serve one more policy: one of the run's, which workers load, or a copy of one."""
        player = policy.rpartition("@")[0]
        if player not in self._learned:
            named = model.named_parameters()
            self._learned[policy] = [name for name, tensor in named if tensor.requires_grad]
            return
        self._learned[policy] = self._learned[player]
        self._tell(AddPolicy(policy=policy, player=player))
        self.publish(policy, model.state_dict(), 0)

    def withdraw(self, policy: str) -> None:
        """Serve a policy no longer, once no worker plays with it."""
        del self._learned[policy]
        self._tell(RemovePolicy(policy=policy))

    def release(self, policy: str) -> None:
        """Let workers give back what a policy only needs while it plays."""
        self._tell(OffloadPolicy(policy=policy))

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """Send new weights; workers that play take them between two steps of their engines."""
        began = time.perf_counter()
        learned = self._learned[policy] if weights else []
        packed = self._put(pack(weights, learned)) if learned else None
        self._tell(UpdateWeights(policy=policy, weights=packed, version=version))
        self.seconds += time.perf_counter() - began

    def add(self, request: Request) -> None:
        """Nobody plays in the driver; raises RuntimeError."""
        raise RuntimeError(f"policy {request.policy!r} is served by workers, not by the driver")

    def step(self) -> list[Completion]:
        """Nothing is ever in flight here."""
        return []


FAREWELL = 10.0
"""Seconds that workers have to end their own processes in."""
PLAY, LISTEN = "play", "listen"
"""The threads of a worker."""


@dataclass(kw_only=True, eq=False)
class _Member:
    """A worker's place, whoever fills it."""

    bundle: int
    actor: Any = None
    chunk: int | None = None
    """What it plays."""
    result: Any = None
    """What that will be."""
    steps: int | None = None
    """Its engine's, as far as heard."""
    heard: float = 0.0
    """When there was last a sign of life."""
    asked: Any = None
    """A question for one, not answered yet."""


@dataclass(kw_only=True)
class _Book:
    """What has been counted since it was last asked for."""

    deaths: int = 0
    resubmitted: int = 0
    elsewhere: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, counts: Mapping[str, float]) -> None:
        """What a worker counted; of differences the largest."""
        for name, value in counts.items():
            known = self.elsewhere[name]
            largest = name.endswith("difference")
            self.elsewhere[name] = max(known, value) if largest else known + value


class RolloutWorkers:
    """Every job's episode is taken once: of a worker that is given up nothing is heard again."""

    def __init__(
        self, cluster: RayCluster, *, count: int, chunks: int, timeout: float, max_restarts: int
    ) -> None:
        """Args:
        cluster: Where they are; its first `count` bundles are theirs.
        count: How many there are.
        chunks: Pieces that each one's share of the jobs is cut into.
        timeout: Seconds without a sign of life after which one counts as hanging.
        max_restarts: Deaths over the same jobs that are borne.
        """
        self.cluster, self.chunks = cluster, chunks
        self.timeout, self.max_restarts = timeout, max_restarts
        self._members = [_Member(bundle=number) for number in range(count)]
        self._present, self._told = SyncState(), Lock()
        self._playing, self._closed = Lock(), False
        self._book = _Book()
        self._brief: Callable[[], WorkerConfig] | None = None

    def start(self, brief: Callable[[], WorkerConfig]) -> None:
        """Start them all, without waiting for them.

        Args:
            brief: Makes what a new worker is told; the changes so far are filled in.
        """
        self._brief = brief
        self._fill()

    def tell(self, change: Change) -> None:
        """Tell all workers, and those who take their places later."""
        with self._told:
            self._present.book(change)
            for member in self._members:
                if member.actor is not None:
                    self._ask(member, "tell", self._present.number, change, group=LISTEN)

    def run(
        self,
        jobs: Sequence[EpisodeSpec],
        evaluation: str | None = None,
        *,
        first: Callable[[], None] = lambda: None,
    ) -> list[Episode]:
        """The episodes of the jobs, in their order; ours alone until all are there.

        Args:
            jobs: What is played.
            evaluation: Whose rollout plays; training's where None.
            first: Done when it is these jobs' turn, such as telling what they need.

        Raises what a worker raised; RunError where they die one after another.
        """
        # One play at a time: who waits here waits for one whose own waits all end.
        with self._playing:
            try:
                self.cluster.check(now=True)
                first()
                self._fill()
                return self._play(list(cut(jobs, len(self._members) * self.chunks)), evaluation)
            finally:
                # After an error others may still be playing: nobody will ask for what they bring.
                for member in self._members:
                    member.chunk = member.result = None

    def counts(self) -> dict[str, float]:
        """Deaths, jobs that were played again, and what services and engines counted."""
        book, self._book = self._book, _Book()
        return {
            "runtime/worker_deaths": float(book.deaths),
            "runtime/resubmitted_jobs": float(book.resubmitted),
            **book.elsewhere,
        }

    def close(self) -> None:
        """End them all, and what they have started."""
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
            # Ray must not go while another thread is still in one of its calls.
            if self._playing.acquire(timeout=FAREWELL):
                self._playing.release()

    def _fill(self) -> None:
        """A worker for every place without one."""
        for member in self._members:
            if member.actor is None:
                self._replace(member)

    def _replace(self, member: _Member) -> None:
        assert self._brief is not None, "no worker was started"
        if self._closed:
            raise RunError("runtime: closed while jobs were being played")
        groups, brief = {PLAY: 1, LISTEN: 1}, self._brief()
        with self._told:
            now = self._present
            brief = replace(brief, number=now.number, changes=now.changes())
            member.actor = self.cluster.actor(RolloutWorker, bundle=member.bundle, groups=groups)
            self._ask(member, "begin", brief, group=PLAY)

    def _give_up(self, member: _Member) -> None:
        """End a worker, and with it all that could still come from it."""
        self.cluster.kill(member.actor)
        with self._told:  # nobody tells one that is just leaving
            member.actor = member.chunk = member.result = member.asked = None

    def _ask(self, member: _Member, method: str, *arguments: Any, group: str) -> Any:
        return getattr(member.actor, method).options(concurrency_group=group).remote(*arguments)

    def _play(
        self, chunks: Sequence[Sequence[EpisodeSpec]], evaluation: str | None
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
                why = self._take(member, done, evaluation)
                if why is None:
                    continue
                self.cluster.check(now=True)  # what follows calls Ray's head
                chunk = member.chunk
                # Counted by jobs: with a machine many workers may die at once.
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
        return [episode for place in range(len(chunks)) for episode in done[place]]

    def _submit(
        self,
        member: _Member,
        place: int,
        chunks: Sequence[Sequence[EpisodeSpec]],
        evaluation: str | None,
        number: int,
    ) -> None:
        member.chunk, member.heard, member.steps = place, time.monotonic(), None
        jobs = list(chunks[place])
        member.result = self._ask(member, "play", jobs, evaluation, number, group=PLAY)

    def _finished(self) -> list[_Member]:
        """Those whose result is there, whatever it is, or who have been silent for too long."""
        busy = {member.result: member for member in self._members if member.chunk is not None}
        ready, _ = self.cluster.ray.wait(list(busy), num_returns=len(busy), timeout=0)
        if not ready:
            ready, _ = self.cluster.ray.wait(list(busy), timeout=min(TICK, self.timeout / 4))
        self.cluster.check()
        found = [busy[each] for each in ready]
        now = time.monotonic()
        for member in busy.values():
            if member not in found and now - self._last_heard(member, now) > self.timeout:
                found.append(member)
        return found

    def _last_heard(self, member: _Member, now: float) -> float:
        """When a worker's engine was last seen to move on."""
        if member.asked is None:
            member.asked = self._ask(member, "steps", group=LISTEN)
        answered, _ = self.cluster.ray.wait([member.asked], timeout=0)
        if answered:
            steps = self._sign(member.asked)
            if steps != member.steps:
                member.steps, member.heard = steps, now
            member.asked = None
        return member.heard

    def _sign(self, question: Any) -> int | None:
        try:
            steps: int = self.cluster.ray.get(question, timeout=self.timeout)
            return steps
        except self.cluster.ray.exceptions.RayError:
            return None  # its death is told by its result

    def _take(
        self, member: _Member, done: dict[int, Sequence[Episode]], evaluation: str | None
    ) -> str | None:
        """Take a worker's result; or, if it is of no more use, why."""
        exceptions = self.cluster.ray.exceptions
        assert member.chunk is not None
        try:
            played: RolloutResult = self.cluster.ray.get(member.result, timeout=0)
        except exceptions.GetTimeoutError:
            return f"no sign of life for {self.timeout:g} s (runtime.timeout)"
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, EngineDied):
                return f"its engine broke: {error.cause}"
            if isinstance(error.cause, LostWorker):
                return str(error.cause)
            raise ours(error) from None
        except exceptions.RayError as error:
            return one_line(error)
        done[member.chunk] = played.episodes
        if evaluation is None:  # what evaluating cost is not training's
            self._book.add(played.counts)
        member.chunk = member.result = None
        return None


def cut(jobs: Sequence[EpisodeSpec], count: int) -> Iterator[list[EpisodeSpec]]:
    """At most `count` pieces of about one length; siblings, who share task and seed, in one."""
    groups = [list(each) for _, each in groupby(jobs, key=lambda job: (job.task.id, job.seed))]
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
