"""The GPUs of a run on Ray: the part that every actor gets, and the type of its weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, Literal, TypeAlias

import torch

from selfplay.errors import ConfigError

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

    @property
    def gpus(self) -> float:
        """Number of GPUs of all actors."""
        return self.workers * self.worker_gpus + self.learners * self.learner_gpus

    def device(self) -> str:
        """Return the device of the workers' models."""
        return "cuda" if self.worker_gpus else "cpu"

    def notes(self) -> list[str]:
        """Return one line that says who computes where, if there are GPUs."""
        if not self.gpus:
            return []
        where = f"{self.learners} learner rank(s) with {self.learner_gpus:g} GPU(s) each"
        if not self.learners:
            where = "this process learns on the CPU; runtime.learners=1 learns on a GPU"
        elif not self.learner_gpus:
            where = f"{self.learners} learner rank(s) on the CPU"
        workers = f"{self.workers} worker(s) with {self.worker_gpus:g} GPU(s) each"
        return [f"runtime: {workers if self.worker_gpus else 'workers on the CPU'}, {where}"]


def placed(
    *,
    workers: int,
    learners: int | None,
    worker_gpus: float | None,
    learner_gpus: float | None,
    available: float,
) -> Placement:
    """Return the placement for the numbers that are set, with defaults for those that are None.

    Without GPUs there are no ranks, and all actors are on the CPU. With GPUs there is one rank, a
    rank has one GPU, and workers have one each, or equal parts of those that are left.

    Args:
        workers: Number of workers.
        learners: Number of ranks, if set.
        worker_gpus: GPUs of each worker, if set.
        learner_gpus: GPUs of each rank, if set.
        available: Number of GPUs of the cluster.

    Raises ConfigError if the ranks leave no GPU for the workers.
    """
    if learners is None:
        wanted = bool(worker_gpus) or bool(learner_gpus) or (worker_gpus is None and available > 0)
        learners = int(wanted)
    if learner_gpus is None:
        learner_gpus = float(bool(learners) and available > 0)
    if worker_gpus is None:
        left = available - learners * learner_gpus
        # Ray counts in steps of 1/10000.
        worker_gpus = min(1.0, floor(max(left, 0.0) / workers * 10_000) / 10_000)
        if available and not worker_gpus:
            if available > 1 or learners > 1:
                raise ConfigError(
                    f"runtime: {learners} learner rank(s) take all {available:g} GPUs, and none "
                    "is left for the workers; lower runtime.learners, or set runtime.worker_gpus "
                    "and runtime.learner_gpus"
                )
            # One GPU is shared: the worker's engine reserves its part (engine.memory).
            learner_gpus, worker_gpus = 0.5, floor(0.5 / workers * 10_000) / 10_000
    return Placement(
        workers=workers,
        learners=learners,
        worker_gpus=float(worker_gpus),
        learner_gpus=float(learner_gpus),
    )


def check_devices(config: Mapping[str, Any]) -> None:
    """Raise ConfigError if a config puts a model of the driver, or of any actor, on a device.

    Ray gives GPUs to actors; a model on another one would share it with an actor unseen.
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
