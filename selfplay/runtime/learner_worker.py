"""A learner rank: one of the processes that learn together, each from a part of the samples."""

import gc
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from selfplay.config.instantiate import build
from selfplay.config.run_config import set_up_process
from selfplay.config.threads import cores
from selfplay.errors import ConfigError, RunError, SelfplayError
from selfplay.learner import fsdp, sharded_checkpoint
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import BatchCounts, Objective
from selfplay.learner.outline import shared
from selfplay.models.out_of_memory import explained
from selfplay.models.population import Population
from selfplay.rollout.policies import load_policies, make_learners
from selfplay.runtime.engine_worker import check_model_files
from selfplay.runtime.weight_sync import Packed, checksum, pack, unpack
from selfplay.types import Sample


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """The settings of a new rank, which the driver sends."""

    config: Mapping[str, Any]
    """Config of the run."""
    objective: Objective
    """The objective, whose loss is minimised."""
    learners: Mapping[str, LearnerSettings]
    """Settings of the learner of each policy."""
    saved: Path | None
    """Checkpoint with the base models of adapters and the files that exist nowhere else."""
    gpu: bool
    """True if the rank learns on a GPU."""
    threads: int
    """Number of torch threads; 0: the rank's number of cores."""
    host: str
    """Name of the driver's machine."""
    replicas: int = 1
    """Number of copies of the state, each of which is sharded over equally many ranks."""


@dataclass(frozen=True, kw_only=True)
class LearnerInfo:
    """Properties of a learner that the driver needs."""

    notes: Sequence[str]
    """Hints for the user, one line each."""
    mini_batches: int
    """Number of optimizer steps per pass over a batch."""
    epochs: int
    """Number of passes over a batch."""
    seed: int
    """Seed of the order of samples."""
    packed: bool
    """True if samples that share prefixes share rows."""


MORE_ROOM = (
    "use more ranks (runtime.learners) and one copy of the state (runtime.replicas=1), train an "
    "adapter (policy.lora), or lower engine.memory where the GPU is shared"
)
"""Keys that make room for the state of a learner on its GPU."""


class LearnerWorker:
    """Ray actor that learns as one of several ranks. `LearnerWorkerGroup` starts and calls it.

    Methods from `connect` on are collective: call each of them on all ranks, in the same order.
    Only `end_save` may run at the same time as another method, in a thread of its own.
    """

    def __init__(self) -> None:
        self.learners: Mapping[str, Learner] = {}
        self._store: dist.TCPStore | None = None
        self._restores: list[Callable[[], None]] = []
        """Functions that move the learners back to their device; none while they are there."""
        self._patience: timedelta | None = None
        """Maximum wait of a collective operation; None: torch's default."""
        self._writers: dist.ProcessGroup | None = None
        """The group of the threads that write; two threads must not use the same group."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        """One thread, so that all ranks write their policies in the same order."""
        self._writes: dict[str, Future[dict[str, str]]] = {}
        """Writes that have begun, by policy."""

    # Beginning ---------------------------------------------------------------------------------

    def alive(self) -> None:
        """Return at once; the answer shows that the rank is alive."""

    def node(self) -> tuple[str, float]:
        """Return the id of this rank's node, and the bytes of its GPU's memory; 0 without one."""
        import ray

        there = torch.cuda.is_available()
        memory = torch.cuda.get_device_properties(0).total_memory if there else 0
        return str(ray.get_runtime_context().get_node_id()), float(memory)

    def progress(self) -> int:
        """Return the number of micro-batches that have begun; its growth shows that the rank
        works."""
        return sum(learner.micro_batches_begun for learner in self.learners.values())

    def open(self, timeout: float) -> tuple[str, int]:
        """Open the store through which ranks find each other; return its host and port."""
        host = _address()
        self._store = dist.TCPStore(
            host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout)
        )
        return host, self._store.port

    def connect(self, place: tuple[str, int], timeout: float) -> None:
        """Connect to the store at this host and port; the rank that opened it does nothing."""
        if self._store is None:
            patience = timedelta(seconds=timeout)
            self._store = dist.TCPStore(*place, is_master=False, timeout=patience)

    def join(self, rank: int, count: int, timeout: float, gpu: bool) -> None:
        """Join the process group as one of `count` ranks; they find each other in the store."""
        self._patience = timedelta(seconds=timeout)
        if gpu and not torch.cuda.is_available():
            raise ConfigError(
                f"runtime.learner_gpus: torch finds no GPU on {socket.gethostname()}; set it to 0, "
                "or install a torch with CUDA there"
            )
        dist.init_process_group(
            # Counts and metrics are in main memory.
            "cpu:gloo,cuda:nccl" if gpu else "gloo",
            store=self._store,
            rank=rank,
            world_size=count,
            timeout=self._patience,
        )
        self._writers = dist.new_group(backend="gloo", timeout=self._patience)

    def begin(self, setup: LearnerConfig) -> dict[str, LearnerInfo]:
        """Load all learners, and shard them if there are several ranks."""
        try:
            with explained("loading a learner", MORE_ROOM):
                self._begin(setup)
        except SelfplayError as error:
            host = socket.gethostname()
            if host == setup.host:
                raise
            raise type(error)(f"learner rank on {host}: {error}") from error
        return self.about()

    def about(self) -> dict[str, LearnerInfo]:
        """Return the properties of the learners that the driver needs."""
        return {
            name: LearnerInfo(
                notes=learner.notes,
                mini_batches=learner.mini_batches,
                epochs=learner.epochs,
                seed=learner.seed,
                packed=learner.packer.packing != "rows",
            )
            for name, learner in self.learners.items()
        }

    def _begin(self, setup: LearnerConfig) -> None:
        config, seed = setup.config, int(setup.config["seed"])
        settings = build(config["run"], where="run")
        set_up_process(replace(settings, threads=setup.threads), seed)
        device = "cuda" if setup.gpu else "cpu"
        if not dist.is_initialized():
            self.learners = self._loaded(setup, device)
            return
        # A machine then holds one whole model, however many ranks it has.
        with _at_least(settings.threads or cores()):
            self.learners = shared(lambda: self._loaded(setup, device))
        gc.collect()
        self.spread(device, setup.replicas)
        gc.collect()

    @staticmethod
    def _loaded(setup: LearnerConfig, device: str) -> dict[str, Learner]:
        """Return the learners with whole models, for a kind of device."""
        config, seed = setup.config, int(setup.config["seed"])
        population = Population.of(config)
        if setup.saved is None or setup.objective.reads_reference:
            check_model_files(population, bases=setup.saved is not None)
        policies = load_policies(
            population,
            seed=seed,
            saved=setup.saved,
            afresh=setup.objective.reads_reference,
            # A whole model may be too large for a GPU.
            device="cpu" if dist.is_initialized() else device,
        )
        return make_learners(
            policies,
            settings=setup.learners,
            objective=setup.objective,
            seed=seed,
            device=device,
        )

    def spread(self, device: str, replicas: int = 1) -> None:
        """Shard the learners over the ranks. With several copies, consecutive ranks share one.

        Args:
            device: Kind of device of the ranks.
            replicas: Number of copies of the state (HSDP), which divides the number of ranks.
        """
        mesh = self._mesh(device, replicas)
        known: fsdp.Spread = {}
        for learner in self.learners.values():
            fsdp.spread(learner, mesh, known=known)

    def _mesh(self, device: str, replicas: int) -> DeviceMesh:
        """Return the mesh of the ranks: [ranks], or [copies, ranks of a copy].

        The groups of copies and of their ranks have the run's time limit; `init_device_mesh` would
        give them torch's own.
        """
        world = dist.get_world_size()
        if replicas == 1:
            return init_device_mesh(device, (world,))
        ranks = torch.arange(world).reshape(replicas, -1)
        groups = [
            dist.new_subgroups_by_enumeration(each.tolist(), timeout=self._patience)[0]
            for each in (ranks.T, ranks)
        ]
        names = ("replicas", "shards")
        return DeviceMesh.from_group(groups, device, mesh=ranks, mesh_dim_names=names)

    # Sharing a GPU -----------------------------------------------------------------------------

    def rest(self) -> None:
        """Move all learners to main memory until the next call."""
        if not self._restores:
            self._restores = [learner.offload() for learner in self.learners.values()]

    def _learner(self, name: str) -> Learner:
        """Return a learner; if the learners are at rest, move them back first."""
        with explained("moving a learner to its GPU", MORE_ROOM):
            while self._restores:
                self._restores.pop()()
        return self.learners[name]

    # Learning ----------------------------------------------------------------------------------

    def logprobs(
        self, name: str, samples: Sequence[Sample], *, reference: bool = False
    ) -> list[list[float]]:
        """Return the log-probabilities [S, C] of this rank's samples, in nats."""
        return self._learner(name).logprobs(samples, reference=reference)

    def optimize(
        self, name: str, samples: Sequence[Sample], totals: BatchCounts, *, step: int
    ) -> dict[str, float]:
        """Make one optimizer step with this rank's samples; return the metrics of all samples."""
        return self._learner(name).optimize(samples, totals, step=step)

    def update_ema(self, name: str) -> None:
        """Update the EMA of the weights."""
        self._learner(name).update_ema()

    def weights(
        self, name: str, dtype: torch.dtype | None = None
    ) -> Iterator[Packed | dict[str, int]]:
        """Yield all learned weights of a policy, and then their checksums by name.

        `dtype` is the type of the yielded weights; None: that of the learner's weights.

        The gradients are dropped, because no later step reads them. A thread computes the checksums
        while Ray stores the weights. Ranks other than the first one yield no weights.
        """
        keep = not dist.is_initialized() or dist.get_rank() == 0
        learner = self._learner(name)
        learner.drop_gradients()
        weights = fsdp.gather(learner, keep=keep, dtype=dtype)
        with ThreadPoolExecutor(1) as pool:
            checksums = pool.submit(
                lambda: {name: checksum(tensor) for name, tensor in weights.items()}
            )
            yield pack(weights, weights.keys())
            yield checksums.result()

    def take(self, name: str, weights: Packed) -> None:
        """Continue with these weights."""
        fsdp.take(self._learner(name), unpack(weights))

    def begin_again(self, name: str) -> None:
        """Reset the learner's state except the weights."""
        self._learner(name).begin_again()

    # Checkpoints -------------------------------------------------------------------------------

    def save(self, name: str, folder: Path) -> dict[str, str]:
        """Write this rank's part of the state, without the weights; return hashes by file."""
        _check_shared(folder)
        return sharded_checkpoint.save(sharded_checkpoint.parts(self._learner(name)), folder)

    def begin_save(self, name: str, folder: Path) -> None:
        """Copy this rank's part of the state to main memory, and begin to write the copy."""
        _check_shared(folder)
        copied = sharded_checkpoint.copied(sharded_checkpoint.parts(self._learner(name)))
        self._writes[name] = self._thread.submit(
            sharded_checkpoint.save, copied, folder, self._writers
        )

    def end_save(self, name: str) -> dict[str, str]:
        """Wait until the copy is written; return hashes by file."""
        return self._writes.pop(name).result()

    def load(self, name: str, folder: Path) -> None:
        """Load the state that any number of ranks wrote."""
        sharded_checkpoint.load(self._learner(name), folder)

    def load_state(self, name: str, state: Mapping[str, Any]) -> None:
        """Load the state that a learner of one process saved."""
        sharded_checkpoint.take(self._learner(name), state)


@contextmanager
def _at_least(threads: int) -> Iterator[None]:
    """Give torch at least this number of threads during the context.

    The first rank loads and tests whole models while the others wait. Ray gives it one thread for
    each core of `runtime.learner_cpus`.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(max(before, threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_shared(folder: Path) -> None:
    if not folder.is_dir():
        raise RunError(
            f"{socket.gethostname()} does not see {folder}; set run.folder to a folder that all "
            "machines of the cluster share"
        )


def _address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
