"""A rollout worker: a process that plays episodes for the driver.

Its engine applies the driver's updates between two steps.
"""

import pickle
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Condition
from typing import Any

from transformers import PreTrainedModel

from selfplay.config.instantiate import TARGET, build
from selfplay.config.run_config import set_up_torch
from selfplay.engines import Engine
from selfplay.errors import (
    ConfigError,
    EngineFailed,
    LearnersLost,
    SelfplayError,
    StalledError,
    one_line,
)
from selfplay.league.snapshots import copy_of
from selfplay.learner.checkpoint import broken
from selfplay.models.model_cache import is_complete
from selfplay.models.offload import offload
from selfplay.models.out_of_memory import explained
from selfplay.models.population import Population
from selfplay.models.warmstart import place_of, tunes
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.weight_sync import (
    AddPolicy,
    Change,
    LoadState,
    OffloadPolicy,
    RemovePolicy,
    UpdateWeights,
    check_arrival,
    unpack,
)
from selfplay.types import Completion, Episode, Request


class EngineDied(RuntimeError):
    """Raised if an engine failed; its worker cannot continue and is replaced."""


class UpdateQueue:
    """Updates that wait to be applied, in the order in which the driver sent them."""

    def __init__(self) -> None:
        self._changes: deque[Change] = deque()
        self._number = 0
        self._arrived = Condition()
        self._fault: BaseException | None = None

    def put(self, number: int, change: Change) -> None:
        """Add the update with this number."""
        with self._arrived:
            self._changes.append(change)
            self._number = max(self._number, number)
            self._arrived.notify_all()

    def fail(self, fault: BaseException) -> None:
        """Let all later calls of `wait` and `take` raise an error, because an update is lost."""
        with self._arrived:
            self._fault = self._fault or fault
            self._arrived.notify_all()

    def begin(self, number: int, changes: Sequence[Change]) -> None:
        """Insert the updates sent before this worker started; later ones may be here already."""
        with self._arrived:
            self._changes.extendleft(reversed(changes))
            self._number = max(self._number, number)
            self._arrived.notify_all()

    def wait(self, number: int, timeout: float | None) -> None:
        """Wait until all updates up to this number are here; StalledError if they are late.

        `timeout` is in seconds; None waits without a limit.
        """
        with self._arrived:
            here = self._arrived.wait_for(lambda: self._fault or self._number >= number, timeout)
            if self._fault is not None:
                raise self._fault
            if not here:
                raise StalledError(
                    f"runtime: waited {timeout:g} s for update {number} of the driver"
                )

    def take(self, *, held: tuple[type[Change], ...] = ()) -> list[Change]:
        """Remove and return the updates that can be applied now.

        Updates of the types in `held`, and later ones of the same policies, stay in the queue.
        """
        with self._arrived:
            if self._fault is not None:
                raise self._fault
            ready, left, names = [], deque[Change](), set()
            for change in self._changes:
                name = None if isinstance(change, LoadState) else change.policy
                if isinstance(change, held) or name in names:
                    names.add(name)
                    left.append(change)
                else:
                    ready.append(change)
            self._changes = left
            return ready


class UpdatableEngine(Engine):
    """Wraps another engine and applies the driver's updates between its steps.

    Raises the wrapped engine's failures as EngineDied.
    """

    def __init__(
        self,
        engine: Engine,
        inbox: UpdateQueue,
        follow: Callable[[Change], None],
    ) -> None:
        """Args:
        engine: The wrapped engine.
        inbox: Queue of the updates.
        follow: Applies an update.
        """
        self.engine, self.inbox, self._follow = engine, inbox, follow
        # No policy is added or withdrawn while requests may be in flight. Jobs that need a new
        # policy begin after its update.
        self._held: tuple[type[Change], ...] = (AddPolicy, RemovePolicy, OffloadPolicy)
        self.in_flight_updates = engine.in_flight_updates
        if not self.in_flight_updates:
            self._held += (UpdateWeights,)
        self._served: dict[str, PreTrainedModel] = {}
        self._restore: Callable[[], None] = lambda: None
        self.steps = 0
        """Number of steps so far; its growth shows that the worker is alive."""

    def catch_up(self) -> None:
        """Apply all waiting updates; no requests may be in flight."""
        for change in self.inbox.take():
            self._follow(change)

    def step(self) -> list[Completion]:
        """Apply the waiting updates, then step the engine."""
        for change in self.inbox.take(held=self._held):
            self._follow(change)
        self.steps += 1
        return self._call(self.engine.step)

    def add(self, request: Request) -> None:
        self._call(self.engine.add, request)

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        self._call(self.engine.serve, policy, model, end_ids)
        self._served[policy] = model

    def withdraw(self, policy: str) -> None:
        self._call(self.engine.withdraw, policy)
        del self._served[policy]

    def release(self, policy: str) -> None:
        self._call(self.engine.release, policy)

    def forget(self) -> None:
        """Drop what the engine keeps of earlier requests."""
        self._call(self.engine.forget)

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        self._call(self.engine.publish, policy, weights, version)

    def sleep(self) -> None:
        self._call(self.engine.sleep)

    def rest(self) -> None:
        """Free the engine's memory on the GPU, and move the served models to main memory."""
        self.sleep()
        distinct = {id(model): model for model in self._served.values()}
        self._restore = offload(distinct.values())

    def wake(self) -> None:
        """Move the served models back; the engine takes its memory with the next request."""
        self._restore()
        self._restore = lambda: None

    def drain_metrics(self) -> Mapping[str, float]:
        return self.engine.drain_metrics()

    def close(self) -> None:
        self.engine.close()

    @staticmethod
    def _call(method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with explained("an engine", "lower engine.memory or engine.max_rows"):
                return method(*arguments)
        except EngineFailed as error:
            raise EngineDied(str(error)) from error
        except SelfplayError:
            raise
        except Exception as error:
            raise EngineDied(one_line(error)) from error


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """The settings of a new worker, which the driver sends."""

    config: Mapping[str, Any]
    """Config of the run."""
    threads: int
    """Number of torch threads."""
    saved: Path | None
    """Checkpoint to load the policies from; None: their initial models."""
    max_staleness: int
    """Maximum number of updates between sampling and learning."""
    timeout: float
    """Maximum number of seconds of every wait."""
    host: str
    """Name of the driver's machine."""
    device: str = "cpu"
    """Device of the models."""
    own_gpu: bool = False
    """True if the worker has a whole GPU."""
    dtype: str | None = None
    """Type of the weights of models; None: that of each policy."""
    number: int = 0
    """Number of updates so far."""
    changes: Sequence[Change] = ()
    """Updates that produce the current state."""


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """The result of a chunk of jobs, which a worker returns to the driver."""

    episodes: Sequence[Episode]
    """Episodes in the order of the jobs."""
    counts: Mapping[str, float]
    """Metrics of services and engines by name."""


class LostWorker(RuntimeError):
    """Raised if a worker cannot continue but its run can; the worker is replaced."""


class RolloutWorker:
    """Ray actor with threads that play, receive updates, and answer, at the same time."""

    def __init__(self) -> None:
        self._inbox = UpdateQueue()
        self._models: dict[str, PreTrainedModel] = {}
        """Models of the policies and snapshots that get weights, by policy."""
        self._setup: RolloutSetup | None = None
        self._engine: UpdatableEngine | None = None
        self._fault: BaseException | None = None
        self._timeout: float | None = None

    def begin(self, brief: WorkerConfig) -> None:
        """Build and load everything that plays; an error is raised by the next `run`."""
        self._timeout = brief.timeout
        try:
            self._begin(brief)
        except Exception as error:
            self._fault = _reported(error, brief)

    def _begin(self, brief: WorkerConfig) -> None:
        config = brief.config
        settings = build(config["run"], where="run")
        set_up_torch(replace(settings, threads=brief.threads), int(config["seed"]))
        self._inbox.begin(brief.number, [self._fetched(change) for change in brief.changes])
        self._setup = players = RolloutSetup(config)
        if brief.saved is None:
            check_model_files(config, players.population)
        engine: Engine = players.build("engine")
        engine.in_flight_updates = brief.max_staleness > 0 and engine.can_update_in_flight
        engine.has_own_gpu = brief.own_gpu
        attentive = UpdatableEngine(engine, self._inbox, self._follow)
        players.load(attentive, saved=brief.saved, device=brief.device, dtype=brief.dtype)
        self._models = {name: policy.model for name, policy in players.policies.items()}
        self._engine = attentive

    def tell(self, number: int, change: Change) -> None:
        """Receive an update, which is applied before the next jobs or between two steps.

        New weights are fetched here, while the engine samples with the old ones.
        """
        try:
            self._inbox.put(number, self._fetched(change))
        except BaseException as error:  # the thread that plays raises it
            self._inbox.fail(error)

    def steps(self) -> int:
        """Return the number of engine steps so far; -1 before the engine is built."""
        return -1 if self._engine is None else self._engine.steps

    def run(
        self, jobs: Sequence[EpisodeSpec], evaluation: str | None, number: int
    ) -> RolloutResult:
        """Play jobs of training or of an evaluation, after all updates up to `number` are here."""
        if self._fault is not None:
            raise self._fault
        assert self._engine is not None and self._setup is not None
        self._inbox.wait(number, self._timeout)
        self._engine.wake()
        self._engine.catch_up()
        players = self._setup
        rollout = players.rollout if evaluation is None else players.rollouts[evaluation]
        episodes = rollout.run(jobs)
        self._engine.catch_up()
        return RolloutResult(episodes=episodes, counts=players.counts())

    def rest(self) -> None:
        """Leave the GPU to a rank until the next jobs.

        A worker that could not begin does nothing, because `run` raises the reason.
        """
        if self._engine is not None and self._fault is None:
            self._engine.rest()

    def close(self) -> None:
        """End the processes that services and engines started."""
        if self._setup is not None:
            self._setup.close()

    def _follow(self, change: Change) -> None:
        """Apply an update."""
        assert self._setup is not None
        players, engine = self._setup, self._setup.engine
        match change:
            case AddPolicy(policy=name, player=player):
                copy = copy_of(players.policies[player], name)
                engine.serve(name, copy.model, copy.renderer.end_ids)
                self._models[name] = copy.model
                players.policy_pool.add(name, engine, copy.renderer)
            case UpdateWeights(policy=name, weights=packed, version=version):
                engine.publish(name, {} if packed is None else unpack(packed), version)
                check_arrival(name, self._models[name], change.checksums, version)
            case LoadState(service=name, state=state):
                players.services[name].load_state_dict(pickle.loads(state))
            case RemovePolicy(policy=name):
                players.policy_pool.remove(name)
                engine.withdraw(name)
                del self._models[name]
            case OffloadPolicy(policy=name):
                engine.release(name)

    def _fetched(self, change: Change) -> Change:
        """Return an update with its weights in place of the reference to them.

        On the machine of their sender they stay where they are, in memory that is shared.
        """
        if not isinstance(change, UpdateWeights) or change.weights is None:
            return change
        return replace(change, weights=self._get(change.weights))

    def _get(self, reference: Any) -> Any:
        import ray

        try:
            return ray.get(reference, timeout=self._timeout)
        except ray.exceptions.GetTimeoutError:
            raise
        except ray.exceptions.ObjectLostError as error:
            raise LearnersLost(f"the newest weights are lost: {one_line(error)}") from error
        except (OSError, ray.exceptions.RaySystemError) as error:
            # When a machine is lost, its worker lives a moment longer than its raylet.
            raise LostWorker(f"its machine was lost: {one_line(error)}") from error


def _reported(error: Exception, brief: WorkerConfig) -> Exception:
    """Return the error that the driver receives for an error at the start of a worker."""
    host, saved = socket.gethostname(), brief.saved
    if saved is not None and saved.parent.is_dir() and broken(saved):
        # Training has removed this checkpoint in the meantime. If this machine sees no folder of
        # checkpoints at all, the original error is raised.
        return LostWorker(f"checkpoint {saved} was removed while it was read")
    if isinstance(error, SelfplayError) and host != brief.host:
        return type(error)(f"worker on {host}: {error}")
    return error


def check_model_files(
    config: Mapping[str, Any], population: Population, *, bases: bool = False
) -> None:
    """Raise ConfigError if a policy needs a warm start that this machine does not have.

    A worker makes no warm start: that takes minutes and gives other weights on another processor.
    `bases` is True if a checkpoint contains the base models of adapters.
    """
    warmstart = config["warmstart"]
    policies = population.policies(config["roles"]).values()
    nodes = [node for node in policies if not (bases and node.get("lora"))]
    if TARGET not in warmstart:
        return
    if tunes(warmstart):
        starts = {node.get("model") for node in nodes if node.get("learn", True)}
    else:
        starts = {None for node in nodes if not node.get("model")}
    for base in starts:
        place = place_of(warmstart, base=base)
        if not is_complete(place):
            raise ConfigError(
                f"the warm start is not in {place}; set SELFPLAY_CACHE to a folder that all "
                "machines of the cluster share"
            )
