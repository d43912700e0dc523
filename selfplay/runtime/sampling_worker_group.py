"""Driver side of the sampling workers: routes requests, collects completions, replaces the dead."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from selfplay.errors import ConfigError, RunError, nearest
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.rollout import RolloutFn
from selfplay.runtime.cluster import TICK, RayCluster
from selfplay.runtime.engine_worker_group import PLAY, EngineWorkerGroup, WorkerMember
from selfplay.runtime.notes import Note, print_note
from selfplay.runtime.policy_groups import PolicyGroup
from selfplay.runtime.sampling_worker import SampleResult, SamplingWorker
from selfplay.runtime.weight_sync import Change, LoadState
from selfplay.runtime.worker_metrics import WorkerMetrics
from selfplay.types import Completion, Episode, Request


@dataclass(kw_only=True, eq=False)
class _Sampler(WorkerMember):
    """A worker that takes engine steps."""

    waiting: list[Request] = field(default_factory=list)
    """Requests that it has not received yet."""
    asked: dict[int, Request] = field(default_factory=dict)
    """Requests that it has received and not answered, by id."""
    result: Any = None
    """Reference to the result of its present call; None while it is idle."""
    begins: bool = True
    """True if the next call is the first one of a rollout."""
    number: int = 0
    """Number of the update that must arrive before it samples."""
    since: float = 0.0
    """Monotonic time of the present call."""
    deaths: int = 0
    """Number of deaths since its last result."""

    @property
    def idle(self) -> bool:
        """True if it takes no step."""
        return self.result is None

    def drop(self) -> None:
        """Ignore the result of its step."""
        self.result = None

    @property
    def load(self) -> int:
        """Number of requests without an answer."""
        return len(self.waiting) + len(self.asked)


class SamplingWorkers(EngineWorkerGroup[_Sampler]):
    """Sends requests to the workers of their policies, and replaces workers that die or hang.

    The episodes are played in the driver's process. Requests of one group of episodes go to the
    same worker, because their prompts begin alike. A request has its own seed, so that a
    replacement samples the same completion again.
    """

    worker = SamplingWorker
    resubmitted = "resubmitted_requests"

    def __init__(
        self,
        cluster: RayCluster,
        groups: Sequence[PolicyGroup],
        *,
        timeout: float,
        load_timeout: float,
        max_restarts: int,
        in_step: bool,
        note: Note = print_note,
    ) -> None:
        """Args:
        cluster, timeout, load_timeout, max_restarts, note: See `EngineWorkerGroup`.
        groups: The groups of workers with their policies, in the order of the bundles.
        in_step: True if all workers with requests take their steps together, so that batches, and
            results to the last bit, do not depend on time. False: none waits for another one.
        """
        places = [place for place, group in enumerate(groups) for _ in range(group.workers)]
        super().__init__(
            cluster,
            [_Sampler(bundle=bundle, group=place) for bundle, place in enumerate(places)],
            timeout=timeout,
            load_timeout=load_timeout,
            max_restarts=max_restarts,
            note=note,
        )
        self.groups, self.in_step = groups, in_step
        self._group_of = {
            name: place for place, group in enumerate(groups) for name in group.policies
        }
        self._ids, self._own_ids = count(), dict[int, int]()
        """Id of a request at the workers to its id in the rollout."""
        self._chosen: dict[tuple[int, int], _Sampler] = {}
        """Worker by group of workers and group of episodes."""
        self._rollout = WorkerMetrics()

    def send(self, change: Change) -> None:
        """Send an update to the workers that hold its policy, and to their later replacements."""
        if isinstance(change, LoadState):
            raise RuntimeError("services are in the process that plays, which is the driver")
        self._send(self._place(change.policy), change)

    def play(
        self, rollout_fn: RolloutFn, specs: Sequence[EpisodeSpec], *, training: bool
    ) -> list[Episode]:
        """Play episodes in this process with a rollout that asks these workers.

        Args:
            rollout_fn: The rollout.
            specs: The episodes; other callers wait until all of these are played.
            training: True if the workers' metrics count.
        """
        with self._playing:
            self.cluster.check(now=True)
            self._fill()
            self._rollout = WorkerMetrics()
            episodes = rollout_fn(specs)
            if training:
                self._metrics.add(self._rollout.by_name)
            return episodes

    def forget(self) -> None:
        """Drop all requests; a worker drops its own at its next call."""
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
        key = (place, request.group_seed)
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

    def _place(self, policy: str) -> int:
        """Return the index of the group that holds a policy; a snapshot is with its player."""
        player = policy if policy in self._group_of else policy.rpartition("@")[0]
        if player not in self._group_of:
            known = nearest(policy, self._group_of)
            raise ConfigError(f"runtime.workers: no worker holds policy {policy!r}; {known}")
        return self._group_of[player]

    def _policies(self, group: int) -> Sequence[str]:
        return self.groups[group].policies

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

    def _take(self, member: _Sampler, completions: list[Completion]) -> str | None:
        """Take a worker's result; return the reason if the worker failed, else None."""
        result, why = self._result(member, member.result)
        if why is not None:
            return why
        assert isinstance(result, SampleResult)
        member.loaded, member.deaths, member.result = True, 0, None
        self._rollout.add(result.counts)
        for done in result.completions:
            if member.asked.pop(done.id, None) is not None:
                completions.append(replace(done, id=self._own_ids.pop(done.id)))
        return None

    def _replace_lost(self, member: _Sampler, why: str) -> None:
        """Start another worker in place of a lost one, and send it all unanswered requests."""
        self.cluster.check(now=True)  # the calls below need Ray's head
        member.deaths += 1
        self._metrics.deaths += 1
        self._metrics.resubmitted += len(member.asked)
        member.waiting = [*member.asked.values(), *member.waiting]
        member.asked = {}
        self._give_up(member)
        if member.deaths > self.max_restarts:
            names = " and ".join(self.groups[member.group].policies)
            raise RunError(
                f"runtime: {member.deaths} workers of policy {names} died with the same requests "
                f"(runtime.max_restarts is {self.max_restarts}); the last one: {why}"
                f"{self.cluster.log_hint}"
            )
        self._note_loss(member, why)
        member.begins = True
        self._start(member)
