"""The hardware of a plan: devices, the links between them, and the layout of the work."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeAlias

from selfplay.config import compose
from selfplay.config.instantiate import TARGET, build
from selfplay.errors import ConfigError, nearest

GB = 1e9
"""Bytes of a gigabyte."""
HARDWARE = (
    *("device", "devices", "node", "network", "host", "pcie"),
    *("usable", "reserved", "engine_reserved", "overhead"),
)
"""Keys of a cluster that no config of a run determines."""
GPU_NAMES = {
    r"GB200": "gb200",
    r"B200": "b200",
    r"H200": "h200",
    r"H100.*PCIe": "h100_pcie",
    r"H100": "h100_sxm",
    r"H20\b": "h20",
    r"A100.*80": "a100_80",
    r"A100": "a100_40",
    r"L40S": "l40s",
    r"MI300X": "mi300x",
    r"RTX 4090": "rtx4090",
    r"RTX 5090": "rtx5090",
}
"""Pattern of a GPU's name, as torch reports it, to the name of its data sheet."""

Case: TypeAlias = Literal[0, 1, 2]
"""Index of a value in a range: slow, likely, fast."""
SLOW: Case = 0
LIKELY: Case = 1
FAST: Case = 2


def check_positive(what: Any, prefix: str, above: Sequence[str] = ()) -> None:
    """Raise ValueError unless all numbers in the fields are finite and at least 0, and those of the
    fields in `above` greater than 0. `prefix` precedes the field's name in the error."""
    for each in fields(what):
        value = getattr(what, each.name)
        if not isinstance(value, int | float):
            continue
        if not (0 < value < inf if each.name in above else 0 <= value < inf):
            least = "above 0" if each.name in above else "at least 0"
            raise ValueError(f"{prefix}{each.name} must be {least}, not {value}")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Utilisation of a device's peaks, and fixed costs in seconds.

    Fractions are [low, likely, high]. The defaults are those of 16-bit training and serving on data
    center GPUs. `train` and `stream` are fitted to eight updates on an H100 (docs/gpu.md). With
    these values, the plan of an 8B model has the published utilisation of 0.33 to 0.39. In
    publications, decoding one sequence reaches 0.69 of the peak bandwidth, and prefills reach 0.43
    to 0.60 of the peak operations.
    """

    train: Sequence[float] = (0.40, 0.70, 0.80)
    """Fraction of the peak operations per second in the matrix products of forward and backward
    passes."""
    forward: Sequence[float] = (0.40, 0.70, 0.80)
    """Fraction of the peak operations per second in the matrix products of the learner's scoring
    passes."""
    stream: Sequence[float] = (0.40, 0.60, 0.80)
    """Fraction of the peak memory bandwidth in the parts of the learner's passes that are no matrix
    products. A CPU does not have this rate: its `train` and `forward` are measured on whole
    passes."""
    prefill: Sequence[float] = (0.35, 0.50, 0.60)
    """Fraction of the peak operations per second in prefill and decoding."""
    bandwidth: Sequence[float] = (0.55, 0.70, 0.77)
    """Fraction of the peak memory bandwidth in decoding."""
    step: float = 1.5e-3
    """Seconds per decoding step, independent of the model."""
    layer: float = 0.0
    """Seconds per decoding step and layer."""
    row: float = 15e-6
    """Seconds per decoding step and sequence."""
    request: float = 0.0
    """Seconds of the engine per request, in addition to its tokens."""
    update: float = 0.0
    """Seconds per optimizer step with its passes, independent of the model."""
    update_layer: float = 0.0
    """Seconds per optimizer step and layer."""
    sample: float = 0.0
    """Seconds of the learner per sample, in addition to its tokens."""
    episode: float = 0.0
    """Seconds of one core per episode: arena, metrics, credit."""
    turn: float = 2e-4
    """Seconds of one core per turn: prompt, parsing."""
    call: float = 2.5e-3
    """Seconds per call of a service, such as a program run."""

    def __post_init__(self) -> None:
        check_positive(self, "rates.")
        for name in ("train", "forward", "stream", "prefill", "bandwidth"):
            shares = getattr(self, name)
            if len(shares) != 3 or not 0 < shares[0] <= shares[1] <= shares[2] < inf:
                raise ValueError(
                    f"rates.{name} must be [low, likely, high], ascending and above 0, not "
                    f"{list(shares)}"
                )


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator, or one process on a CPU, with its peaks from a datasheet or a benchmark."""

    name: str
    """Name of the device."""
    memory: float
    """Memory, in GB (1e9 bytes)."""
    bandwidth: float
    """Memory bandwidth, in GB/s."""
    tflops: float
    """Peak of dense operations in the compute dtype, in 1e12 per second."""
    link: float
    """Bandwidth of collectives per device within a node, in GB/s."""
    kind: Literal["cuda", "cpu"] = "cuda"
    """Kind of the device, as torch names it."""
    rates: Rates = field(default_factory=Rates)
    """Utilisation and fixed costs."""
    basis: Literal["datasheet", "calibrated"] = "datasheet"
    """Source of the numbers."""

    def __post_init__(self) -> None:
        check_positive(self, "device.", above=("memory", "bandwidth", "tflops", "link"))


@dataclass(frozen=True, kw_only=True)
class EngineGroup:
    """Engines that hold the same policies."""

    policies: Sequence[str]
    """Names of the policies."""
    engines: int
    """Number of engines."""


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Devices and layout. The keys can be overridden as `cluster.KEY=value`."""

    device: Device
    """Type of all devices."""
    devices: int = 1
    """Number of devices."""
    node: int = 8
    """Number of devices per machine."""
    network: float = 47.0
    """Bandwidth per device between machines, in GB/s; a 400 Gb/s port gives 46 to 48."""
    host: float = 2000.0
    """Main memory per machine, in GB."""
    pcie: float = 25.0
    """Bandwidth between a device and main memory, in GB/s."""
    rollout: int = 0
    """Number of devices that only generate; 0: all devices alternate generation and learning."""
    groups: Sequence[EngineGroup] = ()
    """Engines by policy; empty: each one holds all policies."""
    tensor: int = 1
    """Number of devices per copy of the engine (tensor parallelism)."""
    shards: int = 0
    """Number of devices per copy of the learner's state; 0: all devices that learn."""
    precision: Literal["mixed", "float32"] = "mixed"
    """Precision of the learner and the engine; mixed: master weights, gradients and AdamW in
    float32, passes and engine in 16 bits."""
    same_weights: bool = False
    """True if the engine samples from the learner's own tensors."""
    checkpointing: bool = True
    """True for activation checkpointing: the backward pass computes each layer again."""
    logits: int = 1024
    """Number of tokens whose logits exist at once; 0: those of the whole micro-batch."""
    offload: bool = False
    """True if the optimizer's state is in main memory."""
    asleep: bool = False
    """True if the learner's state is in main memory during generation."""
    sequences: int = 256
    """Largest number of sequences that a copy of the engine decodes at once."""
    engine_bytes: int = 0
    """Bytes per number in the engine; 0: 2 or 4, as `precision` says."""
    engine_share: float = 0.0
    """Fraction of a device's memory for the engine's weights and cache; 0: all that is left."""
    copies: bool = False
    """True if each policy's model stays in memory in addition to the engine that is loaded from it:
    on the engine's device, or in main memory for an engine over several devices."""
    in_turns: bool = False
    """True if policies of one shape take turns in the memory of one engine."""
    stays: bool = False
    """True if the engine keeps its memory while the learner on the same device works."""
    sleeps: bool = False
    """True if the engine frees its device while the learner works; adapters and their base are then
    in main memory."""
    driver: bool = False
    """True if weights pass through the main memory of the driver, which has no device (as with
    runtime=ray), of the first rank, and of Ray's object store."""
    longest: int = 0
    """Tokens of the longest sequence that the engine must hold; 0: the longest of the workload."""
    usable: float = 0.92
    """Fraction of the memory that a plan may use."""
    reserved: float = 3.0
    """Context, communication buffers and allocator per device in learning, in GB."""
    engine_reserved: float = 4.0
    """Activations and captured graphs per device in generation, in GB."""
    publish: float = 8.0
    """Bandwidth of weight updates to the engine, in GB/s."""
    pause: float = 3.0
    """Seconds that a weight update stops the engine."""
    lag: int = 0
    """Largest staleness of a sample, in weight versions; 0: learning waits for all samples."""
    continuous: bool = True
    """True if engines begin the next batch before the longest completions of this one end."""
    overhead: float = 1.25
    """Factor on a synchronous step, for data movement, imbalance and logging."""

    def __post_init__(self) -> None:
        rates = ("network", "pcie", "publish", "usable", "overhead")
        check_positive(self, "", above=("devices", "node", "tensor", "sequences", *rates))
        if not 0 <= self.rollout < self.devices:
            raise ValueError(f"rollout must be 0 to {self.devices - 1}, not {self.rollout}")
        if self.generators % self.tensor:
            raise ValueError(
                f"{self.generators} devices that generate cannot be split into engines of "
                f"tensor={self.tensor}"
            )
        if self.shards and self.learners % self.shards:
            raise ValueError(
                f"{self.learners} devices that learn cannot be split into copies of "
                f"shards={self.shards}"
            )
        if self.lag and not self.rollout:
            raise ValueError("lag needs devices that only generate; set rollout")

    @property
    def generators(self) -> int:
        """Number of devices that generate."""
        return self.rollout or self.devices

    @property
    def learners(self) -> int:
        """Number of devices that learn."""
        return self.devices - self.rollout

    @property
    def engines(self) -> int:
        """Number of copies of the engine."""
        return self.generators // self.tensor

    def serving(self, policy: str) -> "ClusterSpec":
        """Return the cluster with only those engines that hold a policy."""
        for group in self.groups:
            if policy in group.policies:
                rollout = group.engines * self.tensor
                return replace(self, groups=(), rollout=rollout, devices=self.learners + rollout)
        return self

    def group_of(self, policy: str) -> int:
        """Return the index of the group of engines that holds a policy; 0 without groups."""
        places = [n for n, group in enumerate(self.groups) if policy in group.policies]
        return places[0] if places else 0

    def held(self, names: Iterable[str]) -> list[list[str]]:
        """Return those of `names` that each group of engines holds; one list if all hold all."""
        known = list(names)
        return [[n for n in known if n in group.policies] for group in self.groups] or [known]

    @property
    def sharded(self) -> int:
        """Number of devices that hold one copy of the learner's state."""
        return self.shards or self.learners

    @property
    def width(self) -> int:
        """Bytes per number in passes."""
        return 2 if self.precision == "mixed" else 4

    @property
    def engine_width(self) -> int:
        """Bytes per number in the engine."""
        return self.engine_bytes or self.width

    @property
    def operations(self) -> float:
        """Peak operations per second of one device."""
        return self.device.tflops * 1e12

    @property
    def bytes_per_second(self) -> float:
        """Peak memory bandwidth of one device."""
        return self.device.bandwidth * GB

    @property
    def collective(self) -> float:
        """Bytes per second of the learner's collectives per device."""
        return (self.device.link if self.sharded <= self.node else self.network) * GB


def folder() -> Path:
    """Return the folder of the presets."""
    return compose.config_folder() / "cluster"


def this_machine() -> tuple[ClusterSpec, str]:
    """Return the GPUs of this machine, or its CPU with the speed of `cluster=local`, and a note.

    Raises ConfigError for a GPU without a data sheet here.
    """
    import torch

    count = torch.cuda.device_count()
    if not count:
        cluster, _ = load_cluster("local", [])
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB, 1)
        device = replace(cluster.device, name="this machine's CPU", memory=memory)
        return replace(cluster, device=device, host=memory), (
            "no cluster is named: this machine, with the speed of the CPU of cluster=local; to "
            "measure it: selfplay plan --measure mine.yaml"
        )
    name = torch.cuda.get_device_name()
    known = next((sheet for pattern, sheet in GPU_NAMES.items() if re.search(pattern, name)), None)
    if known is None:
        raise ConfigError(
            f"no cluster is named, and there is no data sheet of {name!r}; name the nearest, such "
            "as cluster=gpus_1 cluster.device=h100_sxm"
        )
    cluster, _ = load_cluster("gpus_1", [f"device={known}"])
    memory = torch.cuda.get_device_properties(0).total_memory / GB
    device = replace(cluster.device, memory=memory)
    made = replace(cluster, device=device, devices=count, node=count)
    return made, f"no cluster is named: this machine, {count} x {name}"


def load_cluster(name: str, overrides: Sequence[str]) -> tuple[ClusterSpec, dict[str, Any]]:
    """Load a preset or a file with `overrides` of its keys; return the cluster and its plain data.

    Raises ConfigError, in one line, if there is no such cluster or its values are invalid.
    """
    path = Path(name).expanduser()
    if path.suffix != ".yaml":
        known = sorted(found.stem for found in folder().glob("*.yaml"))
        if name not in known:
            raise ConfigError(
                f"cluster={name}: no such cluster; {nearest(name, known)}, or name a .yaml file "
                "that `selfplay plan --measure FILE` wrote"
            )
        path = folder() / f"{name}.yaml"
    elif not path.is_file():
        raise ConfigError(
            f"cluster={name}: no such file; create it: selfplay plan --measure {name}"
        )
    devices = [found.stem for found in (path.parent / "device").glob("*.yaml")]
    for asked in (o.removeprefix("device=") for o in overrides if o.startswith("device=")):
        if asked not in devices:
            raise ConfigError(f"cluster.device={asked}: no such device; {nearest(asked, devices)}")
    # A preset has only the keys that it changes; "++" also sets others, and `build` checks them.
    keys = [o if o.startswith("device=") else f"++{o}" for o in overrides]
    plain = compose.load(keys, name=path.stem, folder=path.parent)
    if TARGET not in plain:
        raise ConfigError(f"cluster={name}: {path} has no {TARGET}; name that of a ClusterSpec")
    made = build(plain, where="cluster")
    if not isinstance(made, ClusterSpec):
        kind = type(made).__name__
        raise ConfigError(f"cluster={name}: {path} is a {kind}, not a ClusterSpec")
    return made, plain
