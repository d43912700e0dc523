"""Times a publication of whole weights from a learner rank to a rollout worker, on Ray.

Ours: the first rank stores bytes, the worker maps them and copies them into its model, and both
compute checksums. The other way, which was this library's until version 0.2: the rank returns
tensors, which Ray pickles, the driver copies them into its model and stores them for the worker.
A third line compares an engine in bfloat16 with ours in float32; both learners are in float32.

The wall clock is compared, and the CPU seconds of driver, rank and worker, which depend less on
other work of the machine. The first rounds are not counted: most of their time is
spent on new memory for Ray's store, which later rounds use again.

Rank, worker and driver have as many threads as the processes of a run, unless `--threads` is given.

Usage: python scripts/bench_weights.py [--megabytes 512] [--rounds 5] [--threads N] [--json FILE]
"""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from bench_timing import arguments, compared, show

from selfplay.config.threads import default_count
from selfplay.learner.fsdp import gather
from selfplay.runtime.cluster import environment, require_ray
from selfplay.runtime.learner_worker import LearnerWorker
from selfplay.runtime.rollout_worker import RolloutWorker
from selfplay.runtime.weight_sync import UpdateWeights, pack, unpack

FASTER = 8.0
"""Smallest allowed ratio of the other way's time to ours."""
TENSORS = 32
WARM = 5
"""Rounds that are not counted; they allocate the memory of Ray's store."""


def network(megabytes: int, *, seed: int, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(seed)
    width = megabytes * 2**20 // 4 // TENSORS
    made = torch.nn.ParameterList([torch.randn(width).to(dtype) for _ in range(TENSORS)])
    return torch.nn.ModuleDict({"model": made})


class Rank(LearnerWorker):
    """A rank of one policy."""

    def spent(self) -> float:
        """Return the CPU seconds so far."""
        return time.process_time()

    def build(self, megabytes: int, threads: int) -> None:
        torch.set_num_threads(threads)
        learner: Any = SimpleNamespace(model=network(megabytes, seed=0))
        self.learners = {"base": learner}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return copies of all weights, by name, as this library sent them until version 0.2."""
        return gather(self.learners["base"], keep=True)


class Copying:
    """An engine that copies weights as the embedded one does, and samples nothing."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    @torch.no_grad()
    def publish(self, policy: str, weights: dict[str, torch.Tensor], version: int) -> None:
        own = self.model.state_dict()
        for name, tensor in weights.items():
            if own[name].data_ptr() != tensor.data_ptr():
                own[name].copy_(tensor)


class Worker(RolloutWorker):
    """A worker of one policy, in both precisions."""

    def spent(self) -> float:
        """Return the CPU seconds so far."""
        return time.process_time()

    def build(self, megabytes: int, threads: int) -> None:
        torch.set_num_threads(threads)
        kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
        models: Any = {k: network(megabytes, seed=1, dtype=kind) for k, kind in kinds.items()}
        self._models = models

    def follow(self, change: UpdateWeights) -> None:
        """Receive and apply an update; it checks that the weights arrived."""
        setup: Any = SimpleNamespace(engine=Copying(self._models[change.policy]))
        self._setup = setup
        self._apply(self._fetched(change))

    def copy(self, references: list[Any]) -> None:
        """Receive and apply weights as until version 0.2, the way that ours is compared with."""
        (reference,) = references
        Copying(self._models["float32"]).publish("", unpack(self._get(reference)), 0)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=default_count(torch.get_num_threads()))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ray = require_ray()
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    runtime_env = {"env_vars": environment()}
    rank = ray.remote(Rank).options(runtime_env=runtime_env).remote()
    worker = ray.remote(Worker).options(runtime_env=runtime_env).remote()
    ray.get([each.build.remote(options.megabytes, options.threads) for each in (rank, worker)])
    driver = network(options.megabytes, seed=2)

    def ours(kind: str) -> None:
        dtype = torch.bfloat16 if kind == "bfloat16" else None
        packed, sums = rank.weights.options(num_returns=2).remote("base", dtype)
        checksums = ray.get(sums)
        ray.get(
            worker.follow.remote(
                UpdateWeights(policy=kind, weights=packed, version=1, checksums=checksums)
            )
        )

    def other() -> None:
        tensors = ray.get(rank.tensors.remote())
        Copying(driver).publish("", tensors, 0)
        state = driver.state_dict()
        ray.get(worker.copy.remote([ray.put(pack(state, state.keys()))]))

    works = {
        "ours": lambda: ours("float32"),
        "other": other,
        "half": lambda: ours("bfloat16"),
    }

    def spent() -> float:
        there = ray.get([each.spent.remote() for each in (rank, worker)])
        return float(time.process_time() + sum(there))

    cpu: dict[str, list[float]] = {name: [] for name in works}
    wall: dict[str, list[float]] = {name: [] for name in works}
    for number in range(options.rounds + WARM):
        for name in list(works) if number % 2 else list(works)[::-1]:
            before, began = spent(), time.perf_counter()
            works[name]()
            if number >= WARM:
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(spent() - before)
    ray.shutdown()
    what = f"a publish of {options.megabytes} MB in float32, rank to worker, checked"
    show(
        [
            compared(f"{what}: wall clock", wall["ours"], wall["other"], target=FASTER),
            replace(compared(f"{what}: CPU", cpu["ours"], cpu["other"]), unit="CPU s"),
            replace(
                compared(
                    "the same to an engine in bfloat16, compared with float32: CPU",
                    cpu["half"],
                    cpu["ours"],
                ),
                unit="CPU s",
            ),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
