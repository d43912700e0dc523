"""A rollout worker: a process with everything that plays, which the driver gives jobs.

A worker's engine, which takes in what the driver tells between two of its steps.
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
from selfplay.engines import ServingEngine
from selfplay.errors import ConfigError, EngineFailed, SelfplayError, StalledError, one_line
from selfplay.league.snapshots import copy_of
from selfplay.learner.checkpoint import broken
from selfplay.models.population import Population
from selfplay.models.warmstart import place_of
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.weight_sync import (
    AddPolicy,
    Change,
    LoadState,
    OffloadPolicy,
    RemovePolicy,
    UpdateWeights,
    unpack,
)
from selfplay.types import Completion, Episode, Request


class EngineDied(RuntimeError):
    """An engine broke. The worker that has it is of no more use: another takes its place."""


class UpdateQueue:
    """Changes that wait to be followed, in the order in which the driver told of them."""

    def __init__(self) -> None:
        self._changes: deque[Change] = deque()
        self._number = 0
        self._came = Condition()

    def put(self, number: int, change: Change) -> None:
        """The change of this number has come."""
        with self._came:
            self._changes.append(change)
            self._number = max(self._number, number)
            self._came.notify_all()

    def begin(self, number: int, changes: Sequence[Change]) -> None:
        """What was told before there was this inbox; what was told since may have come already."""
        with self._came:
            self._changes.extendleft(reversed(changes))
            self._number = max(self._number, number)
            self._came.notify_all()

    def wait(self, number: int, timeout: float) -> None:
        """Return when all changes up to this number have come; StalledError where they do not."""
        with self._came:
            if not self._came.wait_for(lambda: self._number >= number, timeout):
                raise StalledError(
                    f"runtime: waited {timeout:g} s for change {number} of the driver"
                )

    def take(self, *, held: tuple[type[Change], ...] = ()) -> list[Change]:
        """What can be followed now, without changes of the kinds in `held` and those of the same
        policies behind them."""
        with self._came:
            found, left, names = [], deque[Change](), set()
            for change in self._changes:
                name = None if isinstance(change, LoadState) else change.policy
                if isinstance(change, held) or name in names:
                    names.add(name)
                    left.append(change)
                else:
                    found.append(change)
            self._changes = left
            return found


class UpdatableEngine:
    """Serves by another engine. What breaks in that one is raised as EngineDied."""

    def __init__(
        self,
        engine: ServingEngine,
        inbox: UpdateQueue,
        follow: Callable[[Change], None],
        *,
        partial: bool = False,
    ) -> None:
        """Args:
        engine: What serves.
        inbox: Where changes come in.
        follow: Makes a change.
        partial: Whether completions in flight go on under new weights.
        """
        self.engine, self.inbox, self._follow = engine, inbox, follow
        # Nobody is withdrawn while requests may be in flight.
        self._held: tuple[type[Change], ...] = (RemovePolicy, OffloadPolicy)
        if not partial:
            self._held += (UpdateWeights,)
        self.steps = 0
        """Steps so far: a sign of life."""

    def catch_up(self) -> None:
        """Follow all that has come in; nothing may be in flight."""
        for change in self.inbox.take():
            self._follow(change)

    def step(self) -> list[Completion]:
        """A step with the newest weights."""
        for change in self.inbox.take(held=self._held):
            self._follow(change)
        self.steps += 1
        return self._asked(self.engine.step)

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._asked(self.engine.add, request)

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        """Serve one more policy."""
        self._asked(self.engine.serve, policy, model, end_ids)

    def withdraw(self, policy: str) -> None:
        """Serve a policy no longer."""
        self._asked(self.engine.withdraw, policy)

    def release(self, policy: str) -> None:
        """Give back what a policy only needs while it plays."""
        self._asked(self.engine.release, policy)

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """Sample with these weights from now on."""
        self._asked(self.engine.publish, policy, weights, version)

    def drain_counts(self) -> Mapping[str, float]:
        """What the engine counted."""
        counts: Mapping[str, float] = getattr(self.engine, "drain_counts", dict)()
        return counts

    def close(self) -> None:
        """Release what the engine holds."""
        getattr(self.engine, "close", lambda: None)()

    @staticmethod
    def _asked(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except EngineFailed as error:
            raise EngineDied(str(error)) from error
        except SelfplayError:
            raise
        except Exception as error:
            raise EngineDied(one_line(error)) from error


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """All that a new worker is told."""

    config: Mapping[str, Any]
    """The run's."""
    threads: int
    """Torch threads."""
    saved: Path | None
    """A checkpoint to take the policies from."""
    max_staleness: int
    """Updates that samples may lie behind."""
    timeout: float
    """Seconds of every wait."""
    host: str
    """The driver's machine."""
    number: int = 0
    """Changes so far."""
    changes: Sequence[Change] = ()
    """What they come to."""


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """What comes back for a chunk of jobs."""

    episodes: Sequence[Episode]
    """In the jobs' order."""
    counts: Mapping[str, float]
    """What services and engines counted meanwhile."""


class LostWorker(RuntimeError):
    """What ends a worker and not its run: another takes its place."""


class RolloutWorker:
    """An actor with a thread that plays and one that listens, so that it hears while it plays."""

    def __init__(self) -> None:
        self._inbox = UpdateQueue()
        self._engine: UpdatableEngine | None = None
        self._fault: BaseException | None = None

    def begin(self, brief: WorkerConfig) -> None:
        """Build and load all that plays; what goes wrong is raised by whoever plays next."""
        self._timeout = brief.timeout
        try:
            self._begin(brief)
        except Exception as error:
            self._fault = _told(error, brief)

    def _begin(self, brief: WorkerConfig) -> None:
        config = brief.config
        settings = build(config["run"], where="run")
        set_up_torch(replace(settings, threads=brief.threads), int(config["seed"]))
        self._inbox.begin(brief.number, brief.changes)
        self.players = RolloutSetup(config)
        if brief.saved is None:
            check_model_files(config, self.players.population)
        engine = build(config["engine"], where="engine")
        partial = brief.max_staleness > 0 and hasattr(engine, "partial")
        if partial:
            engine.partial = True
        attentive = UpdatableEngine(engine, self._inbox, self._follow, partial=partial)
        self.players.load(attentive, saved=brief.saved)
        self._engine = attentive

    def tell(self, number: int, change: Change) -> None:
        """Take a change in: it is followed before the next jobs, or between two steps."""
        self._inbox.put(number, change)

    def steps(self) -> int:
        """Engine steps so far; -1 while it is being built."""
        return -1 if self._engine is None else self._engine.steps

    def run(
        self, jobs: Sequence[EpisodeSpec], evaluation: str | None, number: int
    ) -> RolloutResult:
        """Play jobs of training or of an evaluation, when all changes up to `number` are in."""
        if self._fault is not None:
            raise self._fault
        assert self._engine is not None
        self._inbox.wait(number, self._timeout)
        self._engine.catch_up()
        players = self.players
        rollout = players.rollout if evaluation is None else players.rollouts[evaluation]
        episodes = rollout.run(jobs)
        self._engine.catch_up()
        return RolloutResult(episodes=episodes, counts=players.counts())

    def close(self) -> None:
        """End the processes that services and engines have started."""
        if hasattr(self, "players"):
            self.players.close()

    def _follow(self, change: Change) -> None:
        """Make a change."""
        players, engine = self.players, self.players.engine
        match change:
            case AddPolicy(policy=name, player=player):
                copy = copy_of(players.policies[player], name)
                engine.serve(name, copy.model, copy.renderer.end_ids)
                players.policy_pool.add(name, engine, copy.renderer)
            case UpdateWeights(policy=name, weights=packed, version=version):
                engine.publish(name, {} if packed is None else unpack(self._get(packed)), version)
            case LoadState(service=name, state=state):
                players.world.services[name].load_state_dict(pickle.loads(state))
            case RemovePolicy(policy=name):
                players.policy_pool.remove(name)
                engine.withdraw(name)
            case OffloadPolicy(policy=name):
                engine.release(name)

    def _get(self, reference: Any) -> Any:
        import ray

        try:
            return ray.get(reference, timeout=self._timeout)
        except ray.exceptions.GetTimeoutError:
            raise
        except (OSError, ray.exceptions.RaySystemError) as error:
            # A worker outlives the raylet beside it for a moment, as when its machine goes.
            raise LostWorker(f"its machine was lost: {one_line(error)}") from error


def _told(error: Exception, brief: WorkerConfig) -> Exception:
    """What the driver is told of what went wrong as a worker began."""
    host, saved = socket.gethostname(), brief.saved
    if saved is not None and saved.parent.is_dir() and broken(saved):
        # Training went on and dropped it; where nothing is seen of any, that is what is wrong.
        return LostWorker(f"checkpoint {saved} went while it was read")
    if isinstance(error, SelfplayError) and host != brief.host:
        return type(error)(f"worker on {host}: {error}")
    return error


def check_model_files(
    config: Mapping[str, Any], population: Population, *, bases: bool = False
) -> None:
    """Raise ConfigError where a warm start is needed that this machine has not.

    A worker makes none: it would cost minutes, and come out otherwise on another processor.
    `bases`: whether there is a checkpoint, which has those of adapters.
    """
    warmstart = config["warmstart"]
    found = population.policies(config["roles"]).values()
    nodes = [node for node in found if not (bases and node.get("lora"))]
    if TARGET not in warmstart or all(node.get("model") for node in nodes):
        return
    place = place_of(warmstart)
    if not (place / "config.json").is_file():
        raise ConfigError(
            f"the warm start is not in {place}; let SELFPLAY_CACHE name a folder that all machines "
            "of the cluster have"
        )
