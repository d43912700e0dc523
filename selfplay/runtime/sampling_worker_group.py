"""Driver side of the sampling workers: routes requests, collects completions, replaces the dead."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock
from typing import Any

from selfplay.errors import ConfigError, LearnersLost, RunError, nearest, one_line
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.rollout import RolloutFn
from selfplay.runtime.cluster import TICK, RayCluster, ours
from selfplay.runtime.engine_worker import LostWorker, WorkerConfig
from selfplay.runtime.policy_groups import PolicyGroup
from selfplay.runtime.rollout_worker_group import FAREWELL, FETCH, LISTEN, PLAY
from selfplay.runtime.sampling_worker import SampleResult, SamplingWorker
from selfplay.runtime.updatable_engine import EngineDied
from selfplay.runtime.weight_sync import Change, LoadState, SyncState
from selfplay.runtime.worker_book import WorkerBook
from selfplay.types import Completion, Episode, Request


@dataclass(kw_only=True, eq=False)
class _Sampler:
    """One worker, and its replacements after a death."""

    bundle: int
    """Index of its resources in the cluster."""
    group: int
    """Index of its group."""
    actor: Any = None
    """Ray actor; None before the start and after a death."""
    waiting: list[Request] = field(default_factory=list)
    """Requests that it has not received yet."""
    asked: dict[int, Request] = field(default_factory=dict)
    """Requests that it has received and not answered, by id."""
    begins: bool = True
    """True if the next call is the first one of a rollout."""
    number: int = 0
    """Number of the update that must arrive before it samples."""
    result: Any = None
    """Reference to the result of the present call; None while it is idle."""
    since: float = 0.0
    """Monotonic time of the present call."""
    loaded: bool = False
    """True if it has answered a call."""
    deaths: int = 0
    """Number of deaths since its last result."""

    @property
    def load(self) -> int:
        """Number of requests without an answer."""
        return len(self.waiting) + len(self.asked)


class SamplingWorkers:
    """Sends requests to the workers of their policies, and replaces workers that die or hang.

    The games are played in the driver's process. Requests of one group of episodes go to the same
    worker, because their prompts begin alike. A request has its own seed, so that a replacement
    samples the same completion again.
    """

    def __init__(
        self,
        cluster: RayCluster,
        groups: Sequence[PolicyGroup],
        *,
        timeout: float,
        load_timeout: float,
        max_restarts: int,
        in_step: bool,
    ) -> None:
        """Args:
        cluster: The cluster; its first bundles are for the workers, in the order of the groups.
        groups: The groups of workers with their policies.
        timeout: Seconds after which a worker without the end of an engine step counts as hanging.
        load_timeout: Seconds in which a new worker loads its models and its engine.
        max_restarts: Maximum number of deaths of a worker without a result in between.
        in_step: True if all workers with requests take their steps together, so that batches, and
            results to the last bit, do not depend on time. False: none waits for another one.
        """
        self.cluster, self.groups = cluster, groups
        self.timeout, self.max_restarts = timeout, max_restarts
        self.load_timeout, self.in_step = max(timeout, load_timeout), in_step
        places = [place for place, group in enumerate(groups) for _ in range(group.workers)]
        self._members = [
            _Sampler(bundle=bundle, group=place) for bundle, place in enumerate(places)
        ]
        self._group_of = {
            name: place for place, group in enumerate(groups) for name in group.policies
        }
        self._present = [SyncState() for _ in groups]
        self._telling, self._playing, self._closed = Lock(), Lock(), False
        self._ids, self._own_ids = count(), dict[int, int]()
        """Id of a request at the workers to its id in the rollout."""
        self._chosen: dict[tuple[int, int], _Sampler] = {}
        """Worker by group of workers and group of episodes."""
        self._book, self._rollout = WorkerBook(), WorkerBook()
        self._brief: Callable[[], WorkerConfig] | None = None

    def start(self, brief: Callable[[], WorkerConfig]) -> None:
        """Start all workers without waiting for them.

        Args:
            brief: Makes the settings of a new worker; policies and updates are filled in.
        """
        self._brief = brief
        self._fill()

    def tell(self, change: Change) -> None:
        """Send an update to the workers that hold its policy, and to their later replacements."""
        if isinstance(change, LoadState):
            raise RuntimeError("services are in the process that plays, which is the driver")
        place = self._place(change.policy)
        with self._telling:
            present = self._present[place]
            present.book(change)
            for member in self._members:
                if member.group == place and member.actor is not None:
                    self._ask(member, "tell", present.number, change, thread=FETCH)

    def play(
        self, rollout_fn: RolloutFn, jobs: Sequence[EpisodeSpec], *, training: bool
    ) -> list[Episode]:
        """Play jobs in this process with a rollout that asks these workers.

        Args:
            rollout_fn: The rollout.
            jobs: The jobs; other callers wait until all of these are played.
            training: True if the workers' metrics count.
        """
        with self._playing:
            self.cluster.check(now=True)
            self._fill()
            self._rollout = WorkerBook()
            episodes = rollout_fn(jobs)
            if training:
                self._book.add(self._rollout.elsewhere)
            return episodes

    def forget(self) -> None:
        """Drop all requests; workers do so with their next call."""
        self._own_ids.clear()
        self._chosen.clear()
        for member in self._members:
            member.waiting, member.asked = [], {}
            member.begins, member.result = True, None
            member.number = self._present[member.group].number

    def add(self, request: Request) -> None:
        """Queue a request for a worker of its policy.

        Raises ConfigError if no worker holds the policy.
        """
        place = self._place(request.policy)
        key = (place, request.group)
        member = self._chosen.get(key)
        if member is None:
            group = [each for each in self._members if each.group == place]
            member = self._chosen[key] = min(group, key=lambda each: each.load)
        own = next(self._ids)
        self._own_ids[own] = request.id
        # A renderer is not sent: the worker has its own.
        member.waiting.append(replace(request, id=own, decode=None))

    def step(self) -> list[Completion]:
        """Let workers with requests take a step; return the completions that ended."""
        for member in self._members:
            if member.result is None and member.load:
                self._call(member)
        completions: list[Completion] = []
        for member in self._answered():
            why = self._take(member, completions)
            if why is not None:
                self._replace_lost(member, why)
        return completions

    def counts(self) -> dict[str, float]:
        """Return worker deaths, requests that were sent again, and metrics of the engines."""
        book, self._book = self._book, WorkerBook()
        return {
            "runtime/worker_deaths": float(book.deaths),
            "runtime/resubmitted_requests": float(book.resubmitted),
            **book.elsewhere,
        }

    def close(self) -> None:
        """End all workers and the processes that they started."""
        self._closed = True
        actors = [member.actor for member in self._members if member.actor is not None]
        try:
            idle = [m for m in self._members if m.actor is not None and m.result is None]
            farewells = [self._ask(member, "close", thread=PLAY) for member in idle]
            if farewells and not self.cluster.dead:
                self.cluster.ray.wait(farewells, num_returns=len(farewells), timeout=FAREWELL)
        finally:
            for actor in actors:
                self.cluster.kill(actor)
            # Ray must not shut down while another thread is still in one of its calls.
            if self._playing.acquire(timeout=FAREWELL):
                self._playing.release()

    def _place(self, policy: str) -> int:
        """Return the index of the group that holds a policy; a snapshot is with its player."""
        player = policy if policy in self._group_of else policy.rpartition("@")[0]
        if player not in self._group_of:
            known = nearest(policy, self._group_of)
            raise ConfigError(f"runtime.workers: no worker holds policy {policy!r}; {known}")
        return self._group_of[player]

    def _fill(self) -> None:
        """Start a worker in every place without one."""
        for member in self._members:
            if member.actor is None:
                self._start(member)

    def _start(self, member: _Sampler) -> None:
        assert self._brief is not None, "no worker was started"
        if self._closed:
            raise RunError("runtime: closed while jobs were being played")
        threads, brief = {PLAY: 1, FETCH: 1, LISTEN: 1}, self._brief()
        with self._telling:
            now = self._present[member.group]
            brief = replace(
                brief,
                policies=self.groups[member.group].policies,
                number=now.number,
                changes=now.changes(),
            )
            member.actor = self.cluster.actor(SamplingWorker, bundle=member.bundle, groups=threads)
            self._ask(member, "begin", brief, thread=PLAY)

    def _ask(
        self, member: _Sampler, method: str, *arguments: Any, thread: str, **named: Any
    ) -> Any:
        call = getattr(member.actor, method).options(concurrency_group=thread)
        return call.remote(*arguments, **named)

    def _call(self, member: _Sampler) -> None:
        """Send the waiting requests, and let the worker take a step."""
        if member.actor is None:
            self._start(member)
        requests, member.waiting = member.waiting, []
        member.asked |= {request.id: request for request in requests}
        member.since = time.monotonic()
        member.result = self._ask(
            member, "sample", requests, member.number, begins=member.begins, thread=PLAY
        )
        member.begins = False

    def _answered(self) -> list[_Sampler]:
        """Return the workers with a result or an error, and those that hang."""
        busy = {member.result: member for member in self._members if member.result is not None}
        while busy:
            ready, _ = self.cluster.ray.wait(
                list(busy),
                num_returns=len(busy) if self.in_step else 1,
                timeout=min(TICK, self.timeout / 4),
            )
            self.cluster.check()
            now = time.monotonic()
            hanging = [m for m in busy.values() if now - m.since > self._limit(m)]
            if len(ready) == len(busy) or hanging or (ready and not self.in_step):
                return [busy[r] for r in busy if r in ready or busy[r] in hanging]
        return []

    def _limit(self, member: _Sampler) -> float:
        """Return the number of seconds of a call after which a worker counts as hanging."""
        return self.timeout if member.loaded else self.load_timeout

    def _take(self, member: _Sampler, completions: list[Completion]) -> str | None:
        """Take a worker's result; return the reason if the worker failed, else None."""
        exceptions = self.cluster.ray.exceptions
        try:
            result: SampleResult = self.cluster.ray.get(member.result, timeout=0)
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
        member.loaded, member.deaths, member.result = True, 0, None
        self._rollout.add(result.counts)
        for done in result.completions:
            if member.asked.pop(done.id, None) is not None:
                completions.append(replace(done, id=self._own_ids.pop(done.id)))
        return None

    def _replace_lost(self, member: _Sampler, why: str) -> None:
        """Start another worker in place of a lost one, and ask it everything again."""
        self.cluster.check(now=True)  # the calls below need Ray's head
        member.deaths += 1
        self._book.deaths += 1
        self._book.resubmitted += len(member.asked)
        member.waiting = [*member.asked.values(), *member.waiting]
        member.asked = {}
        self._give_up(member)
        if member.deaths > self.max_restarts:
            names = " and ".join(self.groups[member.group].policies)
            raise RunError(
                f"runtime: {member.deaths} workers of policy {names} died over the same requests "
                f"(runtime.max_restarts is {self.max_restarts}); the last one: {why}"
            )
        member.begins = True
        self._start(member)

    def _give_up(self, member: _Sampler) -> None:
        """End a worker and ignore its results."""
        self.cluster.kill(member.actor)
        with self._telling:  # `tell` must not reach a worker that is being removed
            member.actor = member.result = None
            member.loaded = False
