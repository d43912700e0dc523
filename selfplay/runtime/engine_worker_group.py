"""Driver side of workers with engines: starts them, sends them updates, and ends them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, ClassVar, Generic, TypeVar

from selfplay.errors import LearnersLost, RunError
from selfplay.runtime.cluster import RayCluster, death_reason, selfplay_error
from selfplay.runtime.engine_worker import EngineWorker, LostWorker, WorkerConfig
from selfplay.runtime.notes import Note, print_note
from selfplay.runtime.updatable_engine import EngineDied
from selfplay.runtime.weight_sync import Change, SyncState
from selfplay.runtime.worker_metrics import WorkerMetrics

CLOSE_TIMEOUT = 10.0
"""Maximum number of seconds in which workers end the processes that they started."""
PLAY, FETCH, LISTEN = "play", "fetch", "listen"
"""Names of a worker's threads."""


@dataclass(kw_only=True, eq=False)
class WorkerMember(ABC):
    """One worker of the fixed number, and its replacements after a death."""

    bundle: int
    """Index of its resources in the cluster."""
    group: int = 0
    """Index of the group of workers with the same policies."""
    actor: Any = None
    """Ray actor; None before the start and after a death."""
    loaded: bool = False
    """True if its models and its engine are loaded."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """True if no call that plays or samples is in progress."""

    @abstractmethod
    def drop(self) -> None:
        """Ignore the results of its calls in progress."""


M = TypeVar("M", bound=WorkerMember)


class EngineWorkerGroup(ABC, Generic[M]):
    """Base class of `RolloutWorkers` and `SamplingWorkers`, which differ in the calls that play or
    sample."""

    worker: ClassVar[type[EngineWorker]]
    """Class of the actors."""
    resubmitted: ClassVar[str]
    """Name of the metric that counts the episodes or requests that were sent again."""

    def __init__(
        self,
        cluster: RayCluster,
        members: Sequence[M],
        *,
        timeout: float,
        load_timeout: float,
        max_restarts: int,
        resources: Mapping[str, float] | None = None,
        note: Note = print_note,
    ) -> None:
        """Args:
        cluster: The cluster; its first bundles are for the workers.
        members: The workers.
        timeout: Seconds without an engine step after which a worker counts as hanging.
        load_timeout: Seconds in which a new worker loads its models and its engine, at least
            `timeout`.
        max_restarts: Maximum number of workers that may die with the same episodes or requests, or
            one after another while they rest or wake.
        resources: Each worker's part of its bundle; None: the whole bundle.
        note: Shows the user a line for each worker that was lost.
        """
        self.cluster, self._members, self._resources = cluster, list(members), resources
        self._note = note
        self.timeout, self.load_timeout = timeout, max(timeout, load_timeout)
        self.max_restarts = max_restarts
        self._present = [SyncState() for _ in {member.group for member in members}]
        self._sending, self._playing, self._closed = Lock(), Lock(), False
        self._metrics = WorkerMetrics()
        self._settings: Callable[[], WorkerConfig] | None = None

    def start(self, settings: Callable[[], WorkerConfig], *, later: bool = False) -> None:
        """Start all workers without waiting for them.

        Args:
            settings: Returns the settings of a new worker, without policies and updates.
            later: True to start them with the first episodes.
        """
        self._settings = settings
        if not later:
            self._fill()

    def counts(self) -> dict[str, float]:
        """Return metrics by name since the last call: worker deaths, episodes or requests that were
        sent again, and metrics of services and engines."""
        seen, self._metrics = self._metrics, WorkerMetrics()
        return {
            "runtime/worker_deaths": float(seen.deaths),
            f"runtime/{self.resubmitted}": float(seen.resubmitted),
            **seen.by_name,
        }

    def close(self) -> None:
        """End all workers and the processes that they started."""
        self._closed = True
        actors = [member.actor for member in self._members if member.actor is not None]
        try:
            idle = [m for m in self._members if m.actor is not None and m.idle]
            answers = [self._ask(member, "close", thread=PLAY) for member in idle]
            if answers and not self.cluster.dead:
                self.cluster.ray.wait(answers, num_returns=len(answers), timeout=CLOSE_TIMEOUT)
        finally:
            for actor in actors:
                self.cluster.kill(actor)
            # Ray must not shut down while another thread is still in one of its calls.
            if self._playing.acquire(timeout=CLOSE_TIMEOUT):
                self._playing.release()

    def _send(self, group: int, change: Change) -> None:
        """Send an update to the workers of a group, and to their later replacements."""
        with self._sending:
            present = self._present[group]
            present.add(change)
            for member in self._members:
                if member.group == group and member.actor is not None:
                    self._ask(member, "send", present.number, change, thread=FETCH)

    def _policies(self, group: int) -> Sequence[str] | None:
        """Return the policies that the workers of a group hold; None: all."""
        return None

    def _play_threads(self, settings: WorkerConfig) -> int:
        """Return the number of calls that a worker may play or sample for at the same time."""
        return 1

    def _fill(self) -> None:
        """Start a worker in every place without one."""
        for member in self._members:
            if member.actor is None:
                self._start(member)

    def _start(self, member: M) -> None:
        assert self._settings is not None, "no worker was started"
        if self._closed:
            raise RunError("runtime: closed while episodes were being played")
        settings = self._settings()
        threads = {PLAY: self._play_threads(settings), FETCH: 1, LISTEN: 1}
        with self._sending:
            now = self._present[member.group]
            settings = replace(
                settings,
                policies=self._policies(member.group),
                number=now.number,
                changes=now.changes(),
            )
            member.actor = self.cluster.actor(
                self.worker, bundle=member.bundle, groups=threads, resources=self._resources
            )
            self._ask(member, "begin", settings, thread=PLAY)

    def _ask(self, member: M, method: str, *arguments: Any, thread: str, **named: Any) -> Any:
        call = getattr(member.actor, method).options(concurrency_group=thread)
        return call.remote(*arguments, **named)

    def _give_up(self, member: M) -> None:
        """End a worker and ignore its results."""
        self.cluster.kill(member.actor)
        with self._sending:  # `_send` must not reach a worker that is being removed
            member.actor = None
            member.loaded = False
        member.drop()

    def _note_loss(self, member: M, why: str) -> None:
        """Tell the user that a worker is replaced, and why."""
        self._note(
            f"runtime: worker {member.bundle} was lost and is replaced: {why}"
            f"{self.cluster.log_hint}"
        )

    def _limit(self, member: M) -> float:
        """Return the number of silent seconds after which a worker counts as hanging."""
        return self.timeout if member.loaded else self.load_timeout

    def _result(self, member: M, reference: Any) -> tuple[Any, str | None]:
        """Return the result of a worker's call and None, or None and the reason of its failure.

        Raises the errors of the work itself, which another worker would raise too.
        """
        exceptions = self.cluster.ray.exceptions
        try:
            return self.cluster.ray.get(reference, timeout=0), None
        except exceptions.GetTimeoutError:
            if not member.loaded:
                return None, f"not loaded after {self._limit(member):g} s (runtime.load_timeout)"
            return None, f"no engine step for {self.timeout:g} s (runtime.timeout)"
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, EngineDied):
                return None, f"its engine failed: {error.cause}"
            if isinstance(error.cause, LostWorker):
                return None, str(error.cause)
            if isinstance(error.cause, LearnersLost):
                for each in self._members:  # all wait for weights that do not exist any more
                    if each.actor is not None:
                        self._give_up(each)
            raise selfplay_error(error) from None
        except exceptions.RayError as error:
            return None, death_reason(error)
