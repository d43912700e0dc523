"""The runtime with rollouts on Ray workers, and learning on Ray workers or in this process."""

import os
import pickle
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from selfplay.config import trust
from selfplay.config.instantiate import TARGET, import_target
from selfplay.credit import Stateful
from selfplay.engines import Engine
from selfplay.engines.shards import shards_of
from selfplay.errors import ConfigError, LearnersLost, RunError
from selfplay.learner import PolicyLearner
from selfplay.learner.checkpoint import broken, kept
from selfplay.learner.objective import Objective
from selfplay.learner.state_copies import Replicas
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.rollout import RolloutFn
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.cluster import RayCluster, reachable, require_ray
from selfplay.runtime.colocation import Colocation, check_colocated
from selfplay.runtime.engine_worker import WorkerConfig
from selfplay.runtime.learner_worker_group import LearnerWorkerGroup
from selfplay.runtime.local import Local
from selfplay.runtime.notes import Note, print_note, slow_start
from selfplay.runtime.placement import (
    Placement,
    WorkerType,
    check_devices,
    check_engine,
    placed,
    sent_bytes,
    shared_memory,
    store_notes,
    worker_dtype,
)
from selfplay.runtime.policy_groups import check_groups, policy_groups
from selfplay.runtime.ray_checks import (
    check_numbers,
    check_ranks,
    check_seconds,
    check_worker_dtype,
)
from selfplay.runtime.remote_engine import RemoteEngine
from selfplay.runtime.rollout_worker_group import RolloutWorkers
from selfplay.runtime.sampling_engine import SamplingEngine
from selfplay.runtime.sampling_worker_group import SamplingWorkers
from selfplay.runtime.weight_sync import LoadState
from selfplay.types import Episode


class RayRuntime:
    """Runs rollouts on Ray workers, and learners on Ray ranks or in this process.

    On a CPU, a synchronous run with one worker gives exactly the samples of a run in one process.
    If this process is already connected to Ray, as in tests and notebooks, that connection is used
    and stays open.
    """

    def __init__(
        self,
        *,
        workers: int | Mapping[str, int | str] = 2,
        learners: int | None = None,
        replicas: Replicas = "auto",
        colocated: bool = False,
        max_staleness: int = 0,
        address: str | None = None,
        worker_cpus: float = 1.0,
        worker_gpus: float | None = None,
        worker_dtype: WorkerType = "auto",
        learner_cpus: float = 1.0,
        learner_gpus: float | None = None,
        chunks: int = 1,
        timeout: float = 600.0,
        load_timeout: float = 1800.0,
        max_restarts: int = 3,
    ) -> None:
        """Args:
        workers: Number of actors that play episodes, each with all policies. A mapping gives each
            policy workers of its own: {proposer: 2, judge: 1}; {critic: judge} lets the workers of
            the judge hold the critic too. This process then plays the episodes, and the workers
            only sample.
        learners: Number of learner ranks; 0: this process learns, on the CPU. None: 1 if workers
            have GPUs, else 0; as many as workers if `colocated`.
        replicas: Number of copies of the learners' state, each sharded over equally many ranks
            (HSDP). 1: sharded over all ranks, which needs the least memory. auto: one copy per
            node, so that only gradients pass between nodes, if all nodes have equally many ranks
            and a rank's part of the state takes at most half of its GPU; else 1.
        colocated: True if each rank shares the GPU of one worker. The workers' engines rest while
            the ranks learn, and the ranks rest, with their tensors in main memory, while the
            workers play.
        max_staleness: Maximum number of updates between sampling and learning; 0: synchronous
            steps.
        address: host:port of an existing cluster, or auto; null starts one on this machine.
        worker_cpus: Cores reserved for each worker.
        worker_gpus: GPUs of each worker; a fraction if it shares one. None: 1, or an equal part of
            one (1/2, 1/3, ...) if the ranks leave fewer than workers; 0 on a cluster without GPUs.
        worker_dtype: Type of the weights, in workers, of models that are float32; auto: bfloat16
            on GPUs, else float32. Adapters stay float32. Weights are sent in this type.
        learner_cpus: Cores reserved for each rank.
        learner_gpus: GPUs of each rank; several ranks need whole ones. None: 1; 0 on a cluster
            without GPUs.
        chunks: Number of chunks per worker that the episodes of a batch are divided into: more
            chunks balance episodes of different lengths, fewer keep an engine's batch large.
        timeout: Maximum number of seconds of every wait: for the cluster, for a worker's next
            engine step, for the next micro-batch of the ranks.
        load_timeout: Maximum number of seconds in which models and engines are loaded, and in
            which ranks write or read a checkpoint; at least `timeout`.
        max_restarts: Maximum number of workers that may die while they play the same episodes, or
            one after another while they rest or wake, and of learner losses without a checkpoint in
            between.
        """
        groups = () if isinstance(workers, int) else policy_groups(workers)
        if groups:
            if colocated or chunks != 1:
                raise ValueError(
                    "workers by policy do not fit colocated=true or chunks: this process plays the "
                    "games, and asks all workers at once; set colocated=false and chunks=1"
                )
            workers = sum(group.workers for group in groups)
        assert isinstance(workers, int)
        check_numbers(
            {
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
        )
        check_seconds({"timeout": timeout, "load_timeout": load_timeout})
        check_worker_dtype(worker_dtype)
        if colocated:
            check_colocated(workers, learners, worker_gpus, learner_gpus, max_staleness)
        check_ranks(
            workers if colocated else learners or 1,
            learners=learners,
            learner_gpus=learner_gpus,
            replicas=replicas,
        )
        self.workers, self.max_staleness = workers, max_staleness
        self.address, self.chunks = address, chunks
        self.timeout, self.max_restarts = timeout, max_restarts
        self.load_timeout, self.replicas = load_timeout, replicas
        self.device: str | None = "cpu"  # GPUs are for actors, which Ray assigns them to
        self._cpus = (worker_cpus, learner_cpus)
        self._placed = partial(
            placed,
            workers=workers,
            learners=learners,
            worker_gpus=worker_gpus,
            learner_gpus=learner_gpus,
            colocated=colocated,
            groups=groups,
        )
        self._groups = groups
        self._worker_dtype: WorkerType = worker_dtype
        self._placement: Placement | None = None
        self.cluster: RayCluster | None = None
        self._opened = ExitStack()
        self._ranks: LearnerWorkerGroup | None = None
        self._colocated = colocated
        self._colocation: Colocation | None = None
        self._sent: dict[str, bytes] = {}
        self._store_notes: Sequence[str] = ()
        self._node_notes: Sequence[str] = ()
        self._show: Note = print_note

    @property
    def notes(self) -> Sequence[str]:
        """Hints for the user about this runtime, one line each."""
        if self._placement is None:
            return []
        cores, asked = os.cpu_count() or 1, self._cores(self._placement)
        ranks = self._ranks.notes if self._ranks else ()
        notes = [*self._placement.notes(), *self._node_notes, *ranks, *self._store_notes]
        if self.address is None and asked > cores:
            notes.append(
                f"runtime: actors request {asked:g} cores and share the {cores} of this machine"
            )
        return notes

    def report_to(self, note: Note) -> None:
        """Show lines about lost processes through `note` from now on."""
        self._show = note

    def _note(self, line: str) -> None:
        self._show(line)

    @property
    def learner_device(self) -> str | None:
        """Kind of device of the ranks; None before `engine`, and without ranks."""
        return None if self._placement is None else self._placement.learner_device

    def check(self, players: RolloutSetup) -> None:
        """Raise ConfigError if Ray, the cluster or a requested GPU is missing, or if the engine
        refuses the model of a policy."""
        ray, config = require_ray(), players.config
        if config["engine"].get("sleep") and not self._colocated:
            raise ConfigError(
                "engine.sleep: engines of workers can sleep only if ranks use the same GPUs; set "
                "engine.sleep=false, or runtime.colocated=true"
            )
        check_devices(config)
        if self._groups:
            population = players.population
            check_groups(self._groups, [*population.policies, *population.saved_models])
        if self.address is not None:
            # auto is resolved when the run starts; a config can be checked on any machine.
            if self.address != "auto":
                reachable(self.address)
            return
        players.population.check_served(players.build("engine"))
        if ray.is_initialized():
            return
        there = torch.cuda.device_count()
        placement = self.placement(there, shards_of(config))
        check_engine(config, placement)
        gpus = placement.gpus
        if gpus > there:
            raise ConfigError(
                f"runtime: {gpus} GPUs are needed, this machine has {there} (an actor with a part "
                "of a GPU has it on one GPU); lower runtime.workers, runtime.worker_gpus or "
                "runtime.learner_gpus, or give the address of a cluster"
            )

    def placement(self, available: float, shards: int = 1) -> Placement:
        """Return the actors and their GPUs on a cluster with `available` GPUs.

        `shards` is the number of shards of each worker's engine. Raises ConfigError if the ranks
        leave too few GPUs for the workers.
        """
        return self._placed(available=available, shards=shards)

    def worker_dtype(self, placement: Placement) -> torch.dtype | None:
        """Return the type of float32 models in workers; None for float32 itself."""
        return worker_dtype(self._worker_dtype, placement)

    def engine(self, players: RolloutSetup) -> Engine:
        """Reserve the resources of all actors; return the engine that forwards to the workers."""
        shards, cores = shards_of(players.config), 0.0
        if self.address is None:
            cores = self._cores(self.placement(torch.cuda.device_count(), shards))
        self.cluster = RayCluster(address=self.address, cpus=cores, timeout=self.timeout)
        self._opened.callback(self.cluster.close)
        placement = self.placement(self.cluster.gpus(), shards)
        check_engine(players.config, placement)
        dtype = self.worker_dtype(placement)
        # Only the actors build the engine, and they do not check whether its class is trusted.
        node = players.config["engine"]
        engine_class = import_target(node[TARGET], "engine")
        trust.admit_class(engine_class, node, "engine")
        exact = dtype is None and getattr(engine_class, "exact", False)
        limits: dict[str, Any] = {
            "timeout": self.timeout,
            "max_restarts": self.max_restarts,
            "load_timeout": self.load_timeout,
            "note": self._note,
        }
        self._workers: RolloutWorkers | SamplingWorkers
        self._engine: RemoteEngine
        put = self.cluster.put
        if self._groups:
            chosen = players.config["run"]["deterministic"]
            in_step = not placement.worker_gpus if chosen == "auto" else bool(chosen)
            sampling = SamplingWorkers(self.cluster, self._groups, in_step=in_step, **limits)
            self._workers = sampling
            self._engine = SamplingEngine(sampling, put=put, dtype=dtype, exact=exact)
        else:
            self._workers = RolloutWorkers(
                self.cluster,
                count=self.workers,
                chunks=self.chunks,
                resources=placement.worker_resources(self._cpus[0]),
                **limits,
            )
            send = self._workers.send
            self._engine = RemoteEngine(send=send, put=put, dtype=dtype, exact=exact)
        self._opened.callback(self._workers.close)
        self._placement = placement
        self.cluster.reserve(placement.bundles(*self._cpus))
        self._node_notes = placement.node_notes(self.cluster.places())
        return self._engine

    def trainers(self, players: RolloutSetup, objective: Objective) -> Mapping[str, PolicyLearner]:
        """Start the workers; return the learners on ranks, or those of this process.

        Workers that share a GPU with ranks start with their first episodes, when the ranks have
        loaded: vLLM counts all memory that is allocated on its GPU while it starts as its own.
        """
        placement = self._placement
        assert placement is not None and self.cluster is not None, "engine() comes first"
        dtype = self.worker_dtype(placement)
        policies = players.policies.values()
        self._store_notes = store_notes(
            sum(sent_bytes(policy, dtype) for policy in policies),
            self.cluster.store_bytes(),
            shared_memory() if self.cluster.connected_here and self.address is None else None,
            saved=sum(sent_bytes(policy, None) for policy in policies if placement.learners),
        )
        receives = self._workers_receive(placement)
        for name, policy in players.policies.items():
            if receives and policy.learn and policy.base is None:
                self._engine.publish(name, policy.model.state_dict(), policy.version)
        self._engine.seconds = 0.0
        if slow := slow_start(players.config, gpus=placement.worker_gpus):
            self._note(slow)
        # All workers together use the number of threads of this process.
        threads = max(1, torch.get_num_threads() // self.workers)
        self._workers.start(
            lambda: WorkerConfig(
                config=players.config,
                threads=threads,
                saved=newest(players.saved),
                max_staleness=self.max_staleness,
                timeout=self.timeout,
                host=socket.gethostname(),
                device=placement.device(),
                own_gpu=placement.colocated or placement.worker_gpus >= 1,
                dtype=None if dtype is None else str(dtype).removeprefix("torch."),
                receives=receives,
            ),
            later=placement.shared,
        )
        if not placement.learners:
            return Local().trainers(players, objective)
        self._ranks = LearnerWorkerGroup(
            self.cluster,
            bundles=placement.rank_bundles(),
            resources=placement.rank_resources(self._cpus[1]),
            before=self._let_ranks_compute,
            gpu=placement.learner_gpus > 0,
            timeout=self.timeout,
            max_restarts=self.max_restarts,
            load_timeout=self.load_timeout,
            replicas=self.replicas,
            dtype=dtype,
            note=self._note,
        )
        self._opened.callback(self._ranks.close)
        if placement.colocated and isinstance(self._workers, RolloutWorkers):
            self._colocation = Colocation(
                workers_rest=self._workers.rest, ranks_rest=self._ranks.rest
            )
        learners = self._ranks.trainers(players, objective)
        if self._colocation is not None:
            self._colocation.seconds = 0.0  # the wait for the workers' models is part of loading
        return learners

    @staticmethod
    def _workers_receive(placement: Placement) -> bool:
        """Return True if workers make their models of published weights.

        On a CPU workers read the files of models, for two reasons. Workers share the memory pages
        of a file. Also, the last bits of a matrix product depend on the place of the weights in
        memory; with weights from files, one worker gives the samples of one process bit for bit.
        """
        return placement.device() != "cpu"

    def restart(self, lost: LearnersLost, saved: Path | None) -> None:
        """Replace all ranks by new ones; raises RunError after too many losses."""
        if self._ranks is None:
            raise RunError(str(lost)) from lost
        self._ranks.restart(lost, saved)

    def rollout_fn(self, players: RolloutSetup, evaluation: str | None = None) -> RolloutFn:
        """Return the function that plays episodes on workers.

        The function first sends the states of the driver's services, and lets ranks on the same
        GPUs rest. If workers only sample, the rollouts of this process play.
        """
        workers = self._workers
        if isinstance(workers, SamplingWorkers):
            own = Local().rollout_fn(players, evaluation)
            return partial(workers.play, own, training=evaluation is None)

        def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
            first = partial(self._before_jobs, players.services)
            return workers.run(specs, evaluation, first=first)

        return play

    def _let_ranks_compute(self) -> None:
        if self._colocation is not None:
            self._colocation.learn()

    def _before_jobs(self, services: Mapping[str, Any]) -> None:
        """Let the workers compute, and send them the states of the driver's services."""
        if self._colocation is not None:
            self._colocation.play()
        self._send_states(services)

    def counts(self) -> dict[str, float]:
        """Return metrics by name: those of the workers, their deaths, the restarts of learners, and
        the seconds spent in `publish` and in moving tensors of processes that share a GPU.

        The restarts of learners are a total; all others are counted since the last call.
        """
        seconds, self._engine.seconds = self._engine.seconds, 0.0
        ranks = self._ranks.counts() if self._ranks else {}
        counts = {**self._workers.counts(), **ranks, "runtime/publish_seconds": seconds}
        if self._colocation is not None:
            counts["runtime/offload_seconds"] = self._colocation.seconds
            self._colocation.seconds = 0.0
        return counts

    def close(self) -> None:
        """End workers and ranks, and Ray if it was started for them."""
        self._opened.close()

    def _send_states(self, services: Mapping[str, Any]) -> None:
        """Send the states of services that changed, because workers need the tasks they play."""
        for name, service in services.items():
            if not isinstance(service, Stateful):
                continue
            state = pickle.dumps(service.state_dict())
            if self._sent.get(name) != state:
                self._workers.send(LoadState(service=name, state=state))
                self._sent[name] = state

    def _cores(self, placement: Placement) -> float:
        worker, learner = self._cpus
        return placement.workers * worker + placement.learners * learner


def newest(saved: Path | None) -> Path | None:
    """Return the newest complete checkpoint in the folder of `saved`: training removes it last.

    None if `saved` is None; `saved` itself if no checkpoint is complete.
    """
    if saved is None:
        return None
    return next((path for path in kept(saved.parent) if broken(path) is None), saved)
