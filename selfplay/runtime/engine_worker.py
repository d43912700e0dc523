"""A process with an engine, which loads policies and gets their new weights from the driver."""

import pickle
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

from transformers import PreTrainedModel

from selfplay.config.instantiate import build
from selfplay.config.run_config import set_up_process
from selfplay.engines import Engine
from selfplay.errors import ConfigError, LearnersLost, SelfplayError, one_line
from selfplay.league.snapshots import copy_of
from selfplay.learner.checkpoint import broken
from selfplay.models.model_cache import is_complete
from selfplay.models.population import Population
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.updatable_engine import UpdatableEngine, UpdateQueue, guarded
from selfplay.runtime.weight_sync import (
    AddPolicy,
    Change,
    LoadState,
    OffloadPolicy,
    RemovePolicy,
    UpdateWeights,
    receive,
    unpack,
)


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
    """True if no learner computes on the worker's GPU while the worker does."""
    dtype: str | None = None
    """Type of the weights of models; None: that of each policy."""
    receives: bool = False
    """True if models are made of the weights in `changes`, and not read from files first."""
    policies: Sequence[str] | None = None
    """Names of the policies that the worker holds; None: all, and it plays the episodes too."""
    number: int = 0
    """Number of updates that the driver has sent so far."""
    changes: Sequence[Change] = ()
    """Updates that bring a new worker to the current state, in the order of their application."""


class LostWorker(RuntimeError):
    """Raised if a worker cannot continue but its run can; the worker is replaced."""


class EngineWorker:
    """Base class of the Ray actors with an engine: it loads policies and applies updates.

    Its methods are called in several threads: one that samples (several if steps overlap), one that
    receives updates, and one that answers.
    """

    def __init__(self) -> None:
        self._inbox = UpdateQueue()
        self._models: dict[str, PreTrainedModel] = {}
        """Models of the policies and snapshots that get weights, by policy."""
        self._setup: RolloutSetup | None = None
        self._engine: UpdatableEngine | None = None
        self._fault: BaseException | None = None
        self._timeout: float | None = None
        self._begun = Event()
        """Set when `begin` has ended."""

    def begin(self, settings: WorkerConfig) -> None:
        """Build and load everything that samples.

        An error is kept: the next call of `run` or `sample` raises it.
        """
        self._timeout = settings.timeout
        try:
            self._begin(settings)
        except Exception as error:
            self._fault = _reported(error, settings)
        finally:
            self._begun.set()

    def _begin(self, settings: WorkerConfig) -> None:
        config = settings.config
        run = build(config["run"], where="run")
        set_up_process(replace(run, threads=settings.threads), int(config["seed"]))
        changes = [self._fetched(change) for change in settings.changes]
        self._setup = players = RolloutSetup(config)
        if settings.saved is None:
            check_model_files(players.population)
        if settings.policies is None:
            players.load_services()
        engine: Engine = players.build("engine")
        engine.in_flight_updates = settings.max_staleness > 0 and engine.can_update_in_flight
        engine.has_own_gpu = settings.own_gpu
        updatable = UpdatableEngine(engine, self._inbox, self._apply)
        sent = {
            change.policy: change
            for change in changes
            if settings.receives
            and isinstance(change, UpdateWeights)
            and change.weights is not None
        }
        players.load(
            updatable,
            saved=settings.saved,
            device=settings.device,
            dtype=settings.dtype,
            only=settings.policies,
            sent={name: unpack(change.weights) for name, change in sent.items()},
        )
        made = {policy.name for policy in players.policies.values() if policy.from_sent}
        # A model that was made of the weights needs only their version. Later updates may be in the
        # inbox already; `begin` inserts these before them.
        self._inbox.begin(
            settings.number,
            [
                replace(change, weights=None)
                if isinstance(change, UpdateWeights) and change.policy in made
                else change
                for change in changes
            ],
        )
        self._models = {name: policy.model for name, policy in players.policies.items()}
        self._engine = updatable

    def send(self, number: int, change: Change) -> None:
        """Receive an update. The engine applies it before the next episodes or between two steps.

        This method fetches new weights while the engine samples with the old ones. Its errors are
        raised in the thread that plays.
        """
        try:
            self._inbox.put(number, self._fetched(change))
        except BaseException as error:
            self._inbox.fail(error)

    def steps(self) -> int:
        """Return the number of engine steps so far; -1 before the engine is built."""
        return -1 if self._engine is None else self._engine.steps

    def rest(self) -> int:
        """Leave the GPU to a rank until the next episodes; return the number of engine steps.

        A worker that could not begin does nothing, because its next call raises the reason.
        """
        if self._engine is not None and self._fault is None:
            self._engine.rest()
        return self.steps()

    def close(self) -> None:
        """End the processes that services and engines started."""
        if self._setup is not None:
            self._setup.close()

    def _apply(self, change: Change) -> None:
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
                sent = {} if packed is None else unpack(packed)
                model, checksums = self._models[name], change.checksums
                own = guarded(receive, name, model, sent, checksums, version)
                engine.publish(name, own, version)
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

        On the sender's machine the weights are not copied, because their memory is shared.
        """
        if not isinstance(change, UpdateWeights) or change.weights is None:
            return change
        return replace(change, weights=self._get(change.weights))

    def _get(self, reference: Any) -> Any:
        import ray

        try:
            return ray.get(reference, timeout=self._timeout)
        except ray.exceptions.GetTimeoutError:  # it is an OSError too
            raise
        except ray.exceptions.ObjectLostError as error:
            raise LearnersLost(f"the newest weights are lost: {one_line(error)}") from error
        except (OSError, ray.exceptions.RaySystemError) as error:
            # When a machine is lost, its worker lives a moment longer than its raylet.
            raise LostWorker(f"its machine was lost: {one_line(error)}") from error


def _reported(error: Exception, settings: WorkerConfig) -> Exception:
    """Return the error that the driver receives for an error at the start of a worker."""
    host, saved = socket.gethostname(), settings.saved
    if saved is not None and saved.parent.is_dir() and broken(saved):
        # Training has removed this checkpoint in the meantime. If this machine sees no folder of
        # checkpoints at all, the original error is raised.
        return LostWorker(f"checkpoint {saved} was removed while it was read")
    if isinstance(error, SelfplayError) and host != settings.host:
        return type(error)(f"worker on {host}: {error}")
    return error


def check_model_files(population: Population, *, bases: bool = False) -> None:
    """Raise ConfigError if a policy needs a warm start that this machine does not have.

    A worker makes no warm start: that takes minutes and gives other weights on another processor.
    `bases` is True if a checkpoint contains the base models of adapters.
    """
    warmstart = population.warmstart
    starts = [
        each
        for each in population.policies.values()
        if warmstart.starts_with(each.model, learn=each.learn) and not (bases and each.lora)
    ]
    places = {warmstart.place(base=each.model, **each.chat) for each in starts}
    for place in sorted(places):
        if not is_complete(place):
            raise ConfigError(
                f"the warm start is not in {place}; set SELFPLAY_CACHE to a folder that all "
                "machines of the cluster share"
            )
