"""A rollout worker: a process with everything that plays, which the driver gives jobs."""

import pickle
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from selfplay.build import TARGET, build
from selfplay.checkpoint import broken
from selfplay.errors import ConfigError, SelfplayError, one_line
from selfplay.game import Job
from selfplay.league.snapshots import copy_of
from selfplay.players import Players
from selfplay.population import Population
from selfplay.runtime.attentive import AttentiveEngine, Inbox
from selfplay.runtime.changes import Change, Load, Publish, Release, Serve, Withdraw, unpack
from selfplay.settings import set_up_torch
from selfplay.types import Episode
from selfplay.warmstart import place_of


@dataclass(frozen=True, kw_only=True)
class Brief:
    """All that a new worker is told."""

    config: Mapping[str, Any]
    """The run's."""
    threads: int
    """Torch threads."""
    saved: Path | None
    """A checkpoint to take the policies from."""
    max_lag: int
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
class Played:
    """What comes back for a chunk of jobs."""

    episodes: Sequence[Episode]
    """In the jobs' order."""
    counts: Mapping[str, float]
    """What services and engines counted meanwhile."""


class LostWorker(RuntimeError):
    """What ends a worker and not its run: another takes its place."""


class Worker:
    """An actor with a thread that plays and one that listens, so that it hears while it plays."""

    def __init__(self) -> None:
        self._inbox = Inbox()
        self._engine: AttentiveEngine | None = None
        self._fault: BaseException | None = None

    def begin(self, brief: Brief) -> None:
        """Build and load all that plays; what goes wrong is raised by whoever plays next."""
        self._timeout = brief.timeout
        try:
            self._begin(brief)
        except Exception as error:
            self._fault = _told(error, brief)

    def _begin(self, brief: Brief) -> None:
        config = brief.config
        settings = build(config["run"], where="run")
        set_up_torch(replace(settings, threads=brief.threads), int(config["seed"]))
        self._inbox.begin(brief.number, brief.changes)
        self.players = Players(config)
        if brief.saved is None:
            refuse_absent(config, self.players.population)
        engine = build(config["engine"], where="engine")
        partial = brief.max_lag > 0 and hasattr(engine, "partial")
        if partial:
            engine.partial = True
        attentive = AttentiveEngine(engine, self._inbox, self._follow, partial=partial)
        self.players.load(attentive, saved=brief.saved)
        self._engine = attentive

    def tell(self, number: int, change: Change) -> None:
        """Take a change in: it is followed before the next jobs, or between two steps."""
        self._inbox.put(number, change)

    def steps(self) -> int:
        """Engine steps so far; -1 while it is being built."""
        return -1 if self._engine is None else self._engine.steps

    def play(self, jobs: Sequence[Job], evaluation: str | None, number: int) -> Played:
        """Play jobs of training or of an evaluation, when all changes up to `number` are in."""
        if self._fault is not None:
            raise self._fault
        assert self._engine is not None
        self._inbox.wait(number, self._timeout)
        self._engine.catch_up()
        players = self.players
        rollout = players.rollout if evaluation is None else players.rollouts[evaluation]
        episodes = rollout.play(jobs)
        self._engine.catch_up()
        return Played(episodes=episodes, counts=players.counts())

    def close(self) -> None:
        """End the processes that services and engines have started."""
        if hasattr(self, "players"):
            self.players.close()

    def _follow(self, change: Change) -> None:
        """Make a change."""
        players, engine = self.players, self.players.engine
        match change:
            case Serve(policy=name, player=player):
                copy = copy_of(players.policies[player], name)
                engine.serve(name, copy.model, copy.renderer.end_ids)
                players.seating.add(name, engine, copy.renderer)
            case Publish(policy=name, weights=packed, version=version):
                engine.publish(name, {} if packed is None else unpack(self._get(packed)), version)
            case Load(service=name, state=state):
                players.world.services[name].load_state_dict(pickle.loads(state))
            case Withdraw(policy=name):
                players.seating.remove(name)
                engine.withdraw(name)
            case Release(policy=name):
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


def _told(error: Exception, brief: Brief) -> Exception:
    """What the driver is told of what went wrong as a worker began."""
    host, saved = socket.gethostname(), brief.saved
    if saved is not None and saved.parent.is_dir() and broken(saved):
        # Training went on and dropped it; where nothing is seen of any, that is what is wrong.
        return LostWorker(f"checkpoint {saved} went while it was read")
    if isinstance(error, SelfplayError) and host != brief.host:
        return type(error)(f"worker on {host}: {error}")
    return error


def refuse_absent(
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
