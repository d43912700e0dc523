"""Rollouts on Ray workers, learning on ranks of learners or in this process."""

import math
import os
import pickle
import socket
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from selfplay.config.instantiate import build
from selfplay.engines import ServingEngine
from selfplay.errors import ConfigError, LearnersLost, RunError
from selfplay.learner import Trainer
from selfplay.learner.checkpoint import MANIFEST, broken, kept
from selfplay.learner.objective import Objective
from selfplay.learner.process_group import Precision
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.rollout import RolloutFn
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.cluster import RayCluster, reachable, require_ray
from selfplay.runtime.learner_workers import LearnerWorkerGroup
from selfplay.runtime.local import Local
from selfplay.runtime.rollout_worker import WorkerConfig
from selfplay.runtime.rollout_workers import RemoteEngine, RolloutWorkers
from selfplay.runtime.weight_sync import LoadState
from selfplay.types import Episode


class RayRuntime:
    """Rollout workers, each with the arenas and an engine; learners where they are asked for.

    One worker that plays while nobody learns gives the very samples of a run in one process. Tests
    and notebooks may have called `ray.init` themselves: a Ray that this process is connected to
    is used as it is, and left running.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        learners: int = 0,
        max_staleness: int = 0,
        address: str | None = None,
        worker_cpus: float = 1.0,
        worker_gpus: float = 0.0,
        learner_cpus: float = 1.0,
        learner_gpus: float = 0.0,
        learner_precision: Precision = "float32",
        chunks: int = 1,
        timeout: float = 600.0,
        max_restarts: int = 3,
    ) -> None:
        """Args:
        workers: Actors that play.
        learners: Ranks that learn; 0: this process does.
        max_staleness: Updates that what is learned from may lie behind; 0: every step waits for the
        one
            before.
        address: Of a cluster that exists, host:port or auto; null starts one on this machine.
        worker_cpus: Cores set aside for each worker.
        worker_gpus: GPUs of each worker; a part of one where it shares it.
        learner_cpus: Cores set aside for each rank.
        learner_gpus: GPUs of each rank; several ranks need whole ones.
        learner_precision: What ranks compute in. Weights, sums of gradients and the optimizer stay
            in the policy's dtype; bfloat16 is for GPUs.
        chunks: Pieces that a worker's share of the jobs is cut into: more of them even out who has
            longer games, fewer keep an engine's batch large.
        timeout: Seconds of every wait: for the cluster, for a sign of life of who plays, for each
            thing that ranks are asked.
        max_restarts: Deaths of workers over the same jobs that are borne; and losses of learners
            with no checkpoint in between.
        """
        least = {"workers": 1, "chunks": 1}
        given: dict[str, float] = {
            "workers": workers,
            "chunks": chunks,
            "learners": learners,
            "max_staleness": max_staleness,
            "worker_cpus": worker_cpus,
            "worker_gpus": worker_gpus,
            "learner_cpus": learner_cpus,
            "learner_gpus": learner_gpus,
            "max_restarts": max_restarts,
        }
        for name, value in given.items():
            if not value >= least.get(name, 0):  # nor where it is no number
                raise ValueError(f"{name} is at least {least.get(name, 0)}, not {value}")
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout is a number of seconds, not {timeout}")
        if not learners and (learner_gpus or learner_precision != "float32"):
            raise ValueError(
                "learner_gpus and learner_precision are of ranks, and learners=0 has none; set "
                "learners to at least 1, or policy.device and policy.dtype for this process"
            )
        if learners > 1 and learner_gpus != int(learner_gpus):
            raise ValueError(
                f"learner_gpus is a whole number for several ranks, not {learner_gpus}"
            )
        self.workers, self.learners, self.max_staleness = workers, learners, max_staleness
        self.address, self.chunks = address, chunks
        self.timeout, self.max_restarts = timeout, max_restarts
        self.device: str | None = "cpu" if learners else None
        self._worker = {"CPU": worker_cpus, "GPU": worker_gpus}
        self._learner = {"CPU": learner_cpus, "GPU": learner_gpus}
        self.cluster: RayCluster | None = None
        self._precision: Precision = learner_precision
        self._ranks: LearnerWorkerGroup | None = None
        self._sent: dict[str, bytes] = {}

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know of where the run happens."""
        cores = os.cpu_count() or 1
        asked = self._total("CPU")
        if self.address is None and asked > cores:
            return [f"runtime: actors ask for {asked:g} cores and share the {cores} there are"]
        return []

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise ConfigError where there is no Ray, no cluster, or no GPU that is asked for."""
        ray = require_ray()
        if config["engine"].get("sleep"):
            raise ConfigError(
                "engine.sleep: the engines of workers do not sleep; set engine.sleep=false, or "
                "runtime=local"
            )
        if self.address is not None:
            # What auto stands for is known where the run is started; a config is right anywhere.
            if self.address != "auto":
                reachable(self.address)
            return
        build(config["engine"], where="engine")
        gpus = self._total("GPU")
        if gpus and not ray.is_initialized() and gpus > torch.cuda.device_count():
            raise ConfigError(
                f"runtime: {gpus:g} GPUs are asked for, this machine has "
                f"{torch.cuda.device_count()}; lower runtime.worker_gpus or runtime.learner_gpus, "
                "or give the address of a cluster"
            )

    def engine(self, config: Mapping[str, Any], players: RolloutSetup) -> ServingEngine:
        """What tells the workers, for whom places are set aside now."""
        self.cluster = RayCluster(
            address=self.address,
            cpus=self._total("CPU"),
            timeout=self.timeout,
        )
        self.cluster.reserve([self._worker] * self.workers + [self._learner] * self.learners)
        self._workers = RolloutWorkers(
            self.cluster,
            count=self.workers,
            chunks=self.chunks,
            timeout=self.timeout,
            max_restarts=self.max_restarts,
        )
        self._engine = RemoteEngine(tell=self._workers.tell, put=self.cluster.put)
        return self._engine

    def trainers(self, players: RolloutSetup, objective: Objective) -> Mapping[str, Trainer]:
        """The ranks of learners, or the learners of this process; workers begin to load."""
        # Together they have the threads that this process would have.
        threads = max(1, torch.get_num_threads() // self.workers)
        self._workers.start(
            lambda: WorkerConfig(
                config=players.config,
                threads=threads,
                saved=newest(players.saved),
                max_staleness=self.max_staleness,
                timeout=self.timeout,
                host=socket.gethostname(),
            )
        )
        if not self.learners:
            return Local().trainers(players, objective)
        assert self.cluster is not None
        self._ranks = LearnerWorkerGroup(
            self.cluster,
            first=self.workers,
            count=self.learners,
            gpu=self._learner["GPU"] > 0,
            precision=self._precision,
            timeout=self.timeout,
            max_restarts=self.max_restarts,
        )
        return self._ranks.trainers(players, objective)

    def restart(self, lost: LearnersLost, saved: Path | None) -> None:
        """New ranks in place of all; RunError where that happens too often."""
        if self._ranks is None:
            raise RunError(str(lost)) from lost
        self._ranks.restart(lost, saved)

    def rollout_fn(self, players: RolloutSetup, evaluation: str | None = None) -> RolloutFn:
        """What gives jobs to workers, once they know what the services here know."""

        def play(jobs: Sequence[EpisodeSpec]) -> list[Episode]:
            first = partial(self._send_states, players.world.services)
            return self._workers.run(jobs, evaluation, first=first)

        return play

    def counts(self) -> dict[str, float]:
        """What workers counted, deaths and restarts, and the seconds of publishing."""
        seconds, self._engine.seconds = self._engine.seconds, 0.0
        ranks = self._ranks.counts() if self._ranks else {}
        return {**self._workers.counts(), **ranks, "runtime/publish_seconds": seconds}

    def close(self) -> None:
        """End workers and ranks, and the Ray that was started for them."""
        if self.cluster is None:
            return
        try:
            if self._ranks:
                self._ranks.close()
            if hasattr(self, "_workers"):
                self._workers.close()
        finally:
            self.cluster.close()

    def _send_states(self, services: Mapping[str, Any]) -> None:
        """Send what services hold, where it changed: a worker must know the tasks it plays."""
        for name, service in services.items():
            if not hasattr(service, "load_state_dict"):
                continue
            state = pickle.dumps(service.state_dict())
            if self._sent.get(name) != state:
                self._workers.tell(LoadState(service=name, state=state))
                self._sent[name] = state

    def _total(self, resource: str) -> float:
        return self.workers * self._worker[resource] + self.learners * self._learner[resource]


def newest(saved: Path | None) -> Path | None:
    """The newest whole checkpoint beside one, which is the last to go: its files are needed."""
    if saved is None:
        return None
    return next((place for place in kept(saved.parent) if _whole(place)), saved)


def _whole(place: Path) -> bool:
    """Whether a checkpoint is; read through once, however many workers take it."""
    manifest = place / MANIFEST
    return manifest.is_file() and _read_whole(place, manifest.stat().st_mtime_ns)


@cache
def _read_whole(place: Path, written: int) -> bool:
    return broken(place) is None
