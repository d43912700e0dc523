"""The GPUs of a run on Ray: the part that every actor gets, and the type of its weights."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any, Literal, TypeAlias

import torch

from selfplay.errors import ConfigError
from selfplay.learner.fsdp import learned
from selfplay.models.policy import Policy
from selfplay.runtime.gpu_parts import STEP, gpus_needed
from selfplay.runtime.policy_groups import PolicyGroup

VERSIONS = 2
"""Versions of the weights that are in the object store at once: one is used, the next arrives."""
GB = 1e9
WorkerType: TypeAlias = Literal["auto", "float32", "bfloat16"]
"""Type of float32 models in workers; auto: bfloat16 on GPUs, else float32."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The actors of a run and the GPUs of each one."""

    workers: int
    """Number of rollout workers."""
    learners: int
    """Number of learner ranks; 0: the driver learns, on the CPU."""
    worker_gpus: float
    """GPUs of each worker."""
    learner_gpus: float
    """GPUs of each rank."""
    colocated: bool = False
    """True if each rank shares its GPU with one worker, and one of the two rests."""
    groups: Sequence[PolicyGroup] = ()
    """Workers by policy, in the order of their bundles; empty: each one holds all policies."""
    shards: int = 1
    """Number of shards of each worker's engine, each of which has a GPU of its own."""
    available: float | None = None
    """GPUs of the cluster, for a note about GPUs without an actor; None for no such note, because
    the GPUs of each worker follow from the config."""

    @property
    def gpus(self) -> int:
        """Number of GPUs that all actors need; an actor with a part of a GPU has it on one GPU."""
        return gpus_needed(bundle["GPU"] for bundle in self.bundles(0, 0))

    @property
    def shared(self) -> bool:
        """True if a worker and a rank may be on one GPU at the same time."""
        parts = 0 < self.worker_gpus < 1 and 0 < self.learner_gpus < 1
        return bool(parts and self.learners and not self.colocated)

    @property
    def learner_device(self) -> str | None:
        """Kind of device of the ranks; None without ranks."""
        return ("cuda" if self.learner_gpus else "cpu") if self.learners else None

    def device(self) -> str:
        """Return the device of the workers' models, from which their engines get the weights.

        For an engine with several shards it is the CPU: the model may be too large for one GPU.
        """
        return "cuda" if self.worker_gpus and self.shards == 1 else "cpu"

    def bundles(self, worker_cpus: float, learner_cpus: float) -> list[dict[str, float]]:
        """Return the resources to reserve together: one bundle per actor, or per pair of actors.

        The bundles of the workers come first.

        Args:
            worker_cpus: Cores of each worker.
            learner_cpus: Cores of each rank.
        """
        worker, rank = self.worker_resources(worker_cpus), self.rank_resources(learner_cpus)
        if self.colocated:
            return [{name: worker[name] + rank[name] for name in worker}] * self.workers
        return [worker] * self.workers + [rank] * self.learners

    def rank_bundles(self) -> range:
        """Return the index of each rank's bundle."""
        first = 0 if self.colocated else self.workers
        return range(first, first + self.learners)

    def worker_resources(self, cpus: float) -> dict[str, float]:
        """Return the resources of a worker by Ray's names."""
        return {"CPU": cpus, "GPU": self.worker_gpus}

    def rank_resources(self, cpus: float) -> dict[str, float]:
        """Return the resources of a rank by Ray's names."""
        return {"CPU": cpus, "GPU": self.learner_gpus}

    def notes(self) -> list[str]:
        """Return lines for the user: about the policies of each group of workers, about the GPUs of
        the actors, and about GPUs without an actor. A line without content is left out."""
        held = ", ".join(map(str, self.groups))
        groups = [f"runtime: {held}; this process plays the episodes"] if held else []
        return [*groups, *self._gpu_notes()]

    def node_notes(self, nodes: Sequence[str]) -> list[str]:
        """Return a line with the actors of each node.

        `nodes` has the node of each bundle, in the order of `bundles`, or nothing.
        """
        roles = ["worker(s)"] * self.workers
        if self.groups:
            roles = [
                f"worker(s) of {' and '.join(group.policies)}"
                for group in self.groups
                for _ in range(group.workers)
            ]
        if self.colocated:
            roles = ["pair(s) of worker and learner rank"] * self.workers
        else:
            roles += ["learner rank(s)"] * self.learners
        found: dict[str, Counter[str]] = {}
        for node, role in zip(nodes, roles, strict=bool(nodes)):
            found.setdefault(node, Counter())[role] += 1
        return [
            f"runtime: node {node}: " + ", ".join(f"{count} {role}" for role, count in held.items())
            for node, held in found.items()
        ]

    def _gpu_notes(self) -> list[str]:
        if not self.gpus:
            return []
        if self.colocated:
            return [
                f"runtime: {self.workers} GPU(s), each of one worker and one learner rank, which "
                "compute in alternation"
            ]
        where = f"{self.learners} learner rank(s) with {self.learner_gpus:g} GPU(s) each"
        if not self.learners:
            where = "this process learns on the CPU; runtime.learners=1 learns on a GPU"
        elif not self.learner_gpus:
            where = f"{self.learners} learner rank(s) on the CPU"
        workers = f"{self.workers} worker(s) with {self.worker_gpus:g} GPU(s) each"
        note = f"runtime: {workers if self.worker_gpus else 'workers on the CPU'}, {where}"
        return [note, *self._idle_notes()]

    def _idle_notes(self) -> list[str]:
        """Return a line if the default number of GPUs of a worker leaves some without an actor."""
        if self.available is None or (idle := floor(self.available - self.gpus)) <= 0:
            return []
        fitting = floor(self.available - self.learners * self.learner_gpus)
        return [
            f"runtime: {idle} of {self.available:g} GPUs have no actor; {fitting} workers "
            "(runtime.workers) would use all of them"
        ]


def placed(
    *,
    workers: int,
    learners: int | None,
    worker_gpus: float | None,
    learner_gpus: float | None,
    available: float,
    colocated: bool = False,
    groups: Sequence[PolicyGroup] = (),
    shards: int = 1,
) -> Placement:
    """Return the placement for the numbers that are set, with defaults for those that are None.

    Without GPUs there are no ranks, and all actors are on the CPU. With GPUs there is one rank, a
    rank has one GPU, and workers have one each of those that are left. More workers than GPUs have
    equal parts, and each GPU the same number of workers, as far as possible. A worker whose engine
    has several shards has a GPU for each shard.

    Args:
        workers: Number of workers.
        learners: Number of ranks, if set.
        worker_gpus: GPUs of each worker, if set.
        learner_gpus: GPUs of each rank, if set.
        available: Number of GPUs of the cluster.
        colocated: True for as many ranks as workers, in pairs with one GPU each.
        groups: Workers by policy, if set; their numbers add up to `workers`.
        shards: Number of shards of each worker's engine (`engine.tensor_parallel`).

    Raises ConfigError if the ranks leave no GPU for the workers, or if there are too few for pairs
    or shards.
    """
    if shards > 1:
        _check_shards(shards, worker_gpus, colocated=colocated)
    if colocated:
        if 0 < available < workers:
            raise ConfigError(
                f"runtime.workers: {workers} pairs of worker and rank need {workers} GPUs, and "
                f"there are {available:g}; lower runtime.workers"
            )
        half = 0.5 if available else 0.0
        return Placement(
            workers=workers, learners=workers, worker_gpus=half, learner_gpus=half, colocated=True
        )
    if learners is None:
        wanted = bool(worker_gpus) or bool(learner_gpus) or (worker_gpus is None and available > 0)
        learners = int(wanted)
    if learner_gpus is None:
        learner_gpus = float(bool(learners) and available > 0)
    left = available - learners * learner_gpus
    chosen = worker_gpus is not None or shards > 1
    if worker_gpus is None and available and shards > 1:
        if left < workers * shards:
            raise ConfigError(
                f"runtime: {workers} worker(s) need {shards} GPUs each (engine.tensor_parallel), "
                f"and the {learners} learner rank(s) leave {max(left, 0):g} of {available:g}; "
                "lower runtime.workers or engine.tensor_parallel"
            )
        worker_gpus = float(shards)
    elif worker_gpus is None:
        worker_gpus = _equal_part(workers, left)
        if available and not worker_gpus:
            if available > 1 or learners > 1 or left < 0:
                raise ConfigError(
                    f"runtime: {learners} learner rank(s) take all {available:g} GPUs, and none "
                    "is left for the workers; lower runtime.learners, or set runtime.worker_gpus "
                    "and runtime.learner_gpus"
                )
            # One GPU is shared: the worker's engine reserves its part (engine.memory).
            learner_gpus, worker_gpus = 0.5, _equal_part(workers, 0.5)
    return Placement(
        workers=workers,
        learners=learners,
        worker_gpus=float(worker_gpus),
        learner_gpus=float(learner_gpus),
        groups=groups,
        shards=shards,
        available=None if chosen else available,
    )


def _equal_part(workers: int, left: float) -> float:
    """Return the GPUs of each of several workers that share `left` GPUs equally; at most 1.

    A part of a GPU lies on one GPU: eight workers cannot have 7/8 of a GPU each on seven GPUs.
    """
    whole = max(0, floor(left + 1 / STEP))
    part = 1 / ceil(workers / whole) if whole else max(left, 0.0) / workers
    return min(1.0, floor(part * STEP) / STEP)


def _check_shards(shards: int, worker_gpus: float | None, *, colocated: bool) -> None:
    """Raise ConfigError for settings of a runtime that do not fit engines with several shards."""
    if colocated:
        raise ConfigError(
            f"engine.tensor_parallel: {shards} shards do not fit runtime.colocated=true, where a "
            "worker has one GPU; set engine.tensor_parallel=1 or runtime.colocated=false"
        )
    if worker_gpus and worker_gpus != shards:
        raise ConfigError(
            f"runtime.worker_gpus: a worker with engine.tensor_parallel={shards} needs {shards} "
            f"GPUs, not {worker_gpus:g}; set runtime.worker_gpus=null"
        )


def check_engine(config: Mapping[str, Any], placement: Placement) -> None:
    """Raise ConfigError for an engine that would take GPU memory which other processes need.

    With `runtime.colocated`, the engine must sleep while the ranks learn. An engine with the
    settings `memory` and `cache` measures the free memory of its GPU while it starts, unless
    `cache` is set. Only one engine at a time can measure on a GPU.
    """
    engine, each = config["engine"], placement.worker_gpus
    if placement.colocated and placement.gpus and engine.get("sleep") is False:
        raise ConfigError(
            "runtime.colocated: the engine would keep its GPU memory while the ranks learn; set "
            "engine.sleep=true"
        )
    measures = {"memory", "cache"} <= engine.keys() and engine["cache"] is None
    together = placement.workers > 1 and 0 < each <= 0.5 and not placement.colocated
    if measures and together:
        raise ConfigError(
            f"runtime.workers: several workers with {each:g} GPU(s) may share one, and their "
            "engines would reserve its memory at the same time; use one worker for each GPU, or "
            "set engine.cache in GiB and leave engine.memory=null"
        )


def sent_bytes(policy: Policy, dtype: torch.dtype | None) -> float:
    """Return the bytes of a policy's weights that are sent after an update."""
    size = None if dtype is None or policy.base is not None else dtype.itemsize
    sent = learned(policy.model).values() if policy.learn else ()
    return float(sum(tensor.numel() * (size or tensor.itemsize) for tensor in sent))


def store_notes(weights: float, store: float, shared: float | None, *, saved: float) -> list[str]:
    """Return a line for each limit of Ray's object store that new weights do not fit into.

    Args:
        weights: Bytes of one version of all weights that learn, as they are sent to workers.
        saved: Bytes of the same weights as ranks send them for a checkpoint, in their own type.
        store: Bytes of the smallest store of a machine.
        shared: Bytes of /dev/shm where the store was made here; None: not known.
    """
    notes = []
    if (most := VERSIONS * weights + saved) > store:
        notes.append(
            f"runtime: {VERSIONS} versions of the weights that learn, and one for a checkpoint, "
            f"have {most / GB:.1f} GB, and Ray's object store has {store / GB:.1f} GB, so "
            "that Ray moves weights to the disk; give it more (ray start --object-store-memory, or "
            "RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION for a Ray that is started here)"
        )
    if shared is not None and shared < store:
        notes.append(
            f"runtime: /dev/shm has {shared / GB:.1f} GB and Ray's object store {store / GB:.1f} "
            "GB, so that Ray keeps weights in files of /tmp, which are slow; in a container, raise "
            "--shm-size"
        )
    return notes


def check_devices(config: Mapping[str, Any]) -> None:
    """Raise ConfigError if a `device` of a config would put a model on a GPU.

    Ray gives GPUs to actors only, by the settings of the runtime. It does not know that a model of
    the driver, such as a critic, is on the same GPU. Policies may have the device auto. On a
    machine without a GPU, the device of a critic is not checked.
    """
    devices = {
        f"{part}.{key}": value
        for part in ("policy", "population", "credit")
        for key, value in _devices(config.get(part))
    }
    for key, device in devices.items():
        driver = key.startswith("credit.")
        if device is None or device == "cpu" or (device == "auto" and not driver):
            continue
        if driver and not torch.cuda.is_available():
            continue
        fix = "cpu" if driver else "auto"
        raise ConfigError(
            f"{key}: runtime=ray gives GPUs to workers and ranks only (runtime.worker_gpus, "
            f"runtime.learner_gpus), not {device!r}; set {key}={fix}"
        )


def _devices(node: Any, path: Sequence[str] = ()) -> list[tuple[str, Any]]:
    """Return every setting called device below a node, by its path."""
    if not isinstance(node, Mapping):
        return []
    found = [(".".join((*path, "device")), node["device"])] if "device" in node else []
    return found + [pair for key in node for pair in _devices(node[key], (*path, str(key)))]


def worker_dtype(kind: WorkerType, placement: Placement) -> torch.dtype | None:
    """Return the type of float32 models in workers; None for float32 itself."""
    short = kind == "bfloat16" or (kind == "auto" and placement.worker_gpus > 0)
    return torch.bfloat16 if short else None


def shared_memory() -> float | None:
    """Return the bytes of /dev/shm, or None on a system without it."""
    try:
        return float(shutil.disk_usage("/dev/shm").total)
    except OSError:
        return None
