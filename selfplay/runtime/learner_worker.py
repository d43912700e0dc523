"""A learner rank: one of the processes that learn together, each from its share of the samples."""

import gc
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from selfplay.config.instantiate import build
from selfplay.config.run_config import set_up_torch
from selfplay.errors import ConfigError, RunError, SelfplayError
from selfplay.learner import fsdp, sharded_checkpoint
from selfplay.learner.learner import Learner
from selfplay.learner.objective import BatchCounts, Objective
from selfplay.learner.process_group import Precision
from selfplay.models.population import Population
from selfplay.rollout import policies as members
from selfplay.runtime.rollout_worker import check_model_files
from selfplay.types import Sample


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """All that a new rank is told."""

    config: Mapping[str, Any]
    """The run's."""
    objective: Objective
    """What is maximised."""
    saved: Path | None
    """A checkpoint to take bases of adapters from, and what no other folder has."""
    precision: Precision
    """What forward and backward passes compute in."""
    gpu: bool
    """Whether it learns on a GPU."""
    threads: int
    """Torch threads; 0: as many as the rank has cores."""
    host: str
    """The driver's machine."""


@dataclass(frozen=True, kw_only=True)
class LearnerInfo:
    """What the driver must know of a learner."""

    notes: Sequence[str]
    mini_batches: int
    seed: int
    packed: bool
    """Whether samples that share prefixes share rows."""


class LearnerWorker:
    """An actor. All ranks are asked the same, in one order: their answers need each other."""

    def __init__(self) -> None:
        self.learners: Mapping[str, Learner] = {}
        self._store: dist.TCPStore | None = None

    # Beginning ---------------------------------------------------------------------------------

    def alive(self) -> None:
        """A sign of life."""

    def open(self, timeout: float) -> tuple[str, int]:
        """Make the place where ranks find each other: its host and port."""
        host = _address()
        self._store = dist.TCPStore(
            host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout)
        )
        return host, self._store.port

    def join(
        self, rank: int, count: int, place: tuple[str, int], timeout: float, gpu: bool
    ) -> None:
        """Become one of `count` ranks."""
        patience = timedelta(seconds=timeout)
        if gpu and not torch.cuda.is_available():
            raise ConfigError(
                f"runtime.learner_gpus: torch finds no GPU on {socket.gethostname()}; set it to 0, "
                "or install a torch with CUDA there"
            )
        store = self._store or dist.TCPStore(*place, is_master=False, timeout=patience)
        dist.init_process_group(
            # Counts and figures go by main memory.
            "cpu:gloo,cuda:nccl" if gpu else "gloo",
            store=store,
            rank=rank,
            world_size=count,
            timeout=patience,
        )

    def begin(self, setup: LearnerConfig) -> dict[str, LearnerInfo]:
        """Load all that learns, and cut it among the ranks where there are several."""
        try:
            self._begin(setup)
        except SelfplayError as error:
            host = socket.gethostname()
            if host == setup.host:
                raise
            raise type(error)(f"learner rank on {host}: {error}") from error
        return self.about()

    def about(self) -> dict[str, LearnerInfo]:
        """What the driver must know of the learners."""
        return {
            name: LearnerInfo(
                notes=learner.notes,
                mini_batches=learner.mini_batches,
                seed=learner.seed,
                packed=learner.packer.packing != "rows",
            )
            for name, learner in self.learners.items()
        }

    def _begin(self, setup: LearnerConfig) -> None:
        config, seed = setup.config, int(setup.config["seed"])
        settings = build(config["run"], where="run")
        set_up_torch(replace(settings, threads=setup.threads), seed)
        population: Population = build(config["population"], where="population")
        if setup.saved is None or setup.objective.reads_reference:
            check_model_files(config, population, bases=setup.saved is not None)
        device = "cuda" if setup.gpu else "cpu"
        policies = members.load(
            population,
            config["roles"],
            warmstart=config["warmstart"],
            seed=seed,
            saved=setup.saved,
            afresh=setup.objective.reads_reference,
            # Whole, a model may be more than a GPU holds.
            device="cpu" if dist.is_initialized() else device,
        )
        self.learners = members.learners(
            population,
            policies,
            settings=config["learner"],
            objective=setup.objective,
            seed=seed,
        )
        if dist.is_initialized():
            self.spread(device, setup.precision)
            del policies  # and with them whole tensors, such as an adapter's base
            gc.collect()

    def spread(self, device: str, precision: Precision) -> None:
        """Cut the learners among the ranks."""
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        known: fsdp.Spread = {}
        for learner in self.learners.values():
            fsdp.spread(learner, mesh, precision=precision, known=known)

    # Learning ----------------------------------------------------------------------------------

    def logprobs(
        self, name: str, samples: Sequence[Sample], *, reference: bool = False
    ) -> list[list[float]]:
        """Of this rank's share."""
        return self.learners[name].logprobs(samples, reference=reference)

    def optimize(
        self, name: str, samples: Sequence[Sample], totals: BatchCounts, *, step: int
    ) -> dict[str, float]:
        """One optimizer step; the samples are this rank's share, the figures those of all."""
        return self.learners[name].optimize(samples, totals, step=step)

    def update_ema(self, name: str) -> None:
        """Move the EMA."""
        self.learners[name].update_ema()

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        """All that learns of a policy; of other ranks than the first, nothing."""
        keep = not dist.is_initialized() or dist.get_rank() == 0
        return fsdp.gather(self.learners[name], keep=keep)

    def take(self, name: str, weights: Mapping[str, torch.Tensor]) -> None:
        """Go on with these weights."""
        fsdp.take(self.learners[name], weights)

    def begin_again(self, name: str) -> None:
        """Forget all but the weights."""
        self.learners[name].begin_again()

    # Checkpoints -------------------------------------------------------------------------------

    def save(self, name: str, folder: Path) -> dict[str, str]:
        """Write this rank's part of what is known beside the weights; hashes by file."""
        if not folder.is_dir():
            raise RunError(
                f"{socket.gethostname()} does not see {folder}: let run.folder name a folder that "
                "all machines of the cluster have"
            )
        return sharded_checkpoint.save(self.learners[name], folder)

    def load(self, name: str, folder: Path) -> None:
        """Take over what ranks of any number have written."""
        sharded_checkpoint.load(self.learners[name], folder)

    def load_state(self, name: str, state: Mapping[str, Any]) -> None:
        """Take over what one process has saved."""
        sharded_checkpoint.take(self.learners[name], state)


def _address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
