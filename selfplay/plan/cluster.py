"""What a run is planned on: devices, the links between them, and how the work is laid out."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeAlias

from selfplay.config import compose
from selfplay.config.instantiate import TARGET, build
from selfplay.errors import ConfigError, nearest

GB = 1e9

Case: TypeAlias = Literal[0, 1, 2]
"""Which value of a range: slow, likely, fast."""
SLOW: Case = 0
LIKELY: Case = 1
FAST: Case = 2


def check_positive(what: Any, prefix: str, above: Sequence[str] = ()) -> None:
    """Raise ValueError for a figure that no machine has: those in `above` are above 0, all others
    at least 0."""
    for each in fields(what):
        value = getattr(what, each.name)
        if not isinstance(value, int | float):
            continue
        if not (0 < value < inf if each.name in above else 0 <= value < inf):
            least = "above 0" if each.name in above else "at least 0"
            raise ValueError(f"{prefix}{each.name} is a number {least}, not {value}")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device reaches of its peaks, and what it spends beside them.

    Shares are [low, likely, high]. The defaults are those of 16-bit training and serving on data
    center GPUs: published utilisations of 0.33 to 0.39 in training 8B models, 0.69 of the peak
    bandwidth in decoding one sequence, prefills at 0.43 to 0.60 of the peak.
    """

    train: Sequence[float] = (0.25, 0.40, 0.50)
    """Share of the peak operations in forward and backward passes."""
    forward: Sequence[float] = (0.25, 0.40, 0.50)
    """Share of it in scoring passes of the learner."""
    prefill: Sequence[float] = (0.35, 0.50, 0.60)
    """Share of it in prefill and decoding."""
    bandwidth: Sequence[float] = (0.55, 0.70, 0.77)
    """Share of the peak memory bandwidth in decoding."""
    step: float = 1.5e-3
    """Seconds of a decoding step, whatever the model."""
    layer: float = 0.0
    """Seconds of a decoding step per layer."""
    row: float = 15e-6
    """Seconds of a decoding step per sequence."""
    request: float = 0.0
    """Seconds of the engine per request, beside its tokens."""
    update: float = 0.0
    """Seconds of an optimizer step with its passes, whatever the model."""
    update_layer: float = 0.0
    """Seconds of it per layer."""
    sample: float = 0.0
    """Seconds of the learner per sample, beside its tokens."""
    episode: float = 0.0
    """Seconds of one core per episode: arena, figures, credit."""
    turn: float = 2e-4
    """Seconds of one core per turn of it: prompt, parsing."""
    call: float = 2.5e-3
    """Seconds per call of a service, such as a program run."""

    def __post_init__(self) -> None:
        check_positive(self, "rates.")
        for name in ("train", "forward", "prefill", "bandwidth"):
            shares = getattr(self, name)
            if len(shares) != 3 or not 0 < shares[0] <= shares[1] <= shares[2] < inf:
                raise ValueError(f"rates.{name} is [low, likely, high], not {list(shares)}")


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator, or one process on a CPU: peaks as its maker states or a benchmark finds."""

    name: str
    """What it is."""
    memory: float
    """GB (1e9 bytes)."""
    bandwidth: float
    """GB/s of its memory."""
    tflops: float
    """1e12 dense operations per second in the dtype that it computes in."""
    link: float
    """GB/s that collectives reach per device within a node."""
    rates: Rates = field(default_factory=Rates)
    """What it reaches."""
    basis: Literal["datasheet", "calibrated"] = "datasheet"
    """Where the figures come from."""

    def __post_init__(self) -> None:
        check_positive(self, "device.", above=("memory", "bandwidth", "tflops", "link"))


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Devices and layout. The keys can be overridden as `cluster.KEY=value`."""

    device: Device
    """What it consists of."""
    devices: int = 1
    """How many."""
    node: int = 8
    """Devices of one machine."""
    network: float = 47.0
    """GB/s per device between machines; a 400 Gb/s port gives 46 to 48."""
    host: float = 2000.0
    """GB of main memory per machine."""
    pcie: float = 25.0
    """GB/s between a device and main memory."""
    rollout: int = 0
    """Devices that only generate; 0: all of them take turns at generating and learning."""
    tensor: int = 1
    """Devices that one copy of the engine is spread over."""
    shards: int = 0
    """Devices that one copy of the learner's state is spread over; 0: all that learn."""
    precision: Literal["mixed", "float32"] = "mixed"
    """mixed: masters, gradients and AdamW in float32, passes and engine in 16 bits."""
    same_weights: bool = False
    """Whether the engine samples from the learner's own tensors."""
    checkpointing: bool = True
    """Whether layers are computed again in the backward pass."""
    logits: int = 1024
    """Tokens whose logits exist at once; 0: those of the whole micro-batch."""
    offload: bool = False
    """Whether the optimizer's state lies in main memory."""
    asleep: bool = False
    """Whether the learner's state leaves the device while all generate."""
    sequences: int = 256
    """Most sequences that a copy of the engine decodes at once."""
    usable: float = 0.92
    """Share of the memory that may be planned with."""
    reserved: float = 3.0
    """GB of context, communication buffers and allocator per device in learning."""
    engine_reserved: float = 4.0
    """GB of activations and captured graphs per device in generating."""
    publish: float = 8.0
    """GB/s at which new weights reach the engine."""
    pause: float = 3.0
    """Seconds that a change of weights stops the engine."""
    lag: int = 0
    """Weight versions that a sample may be behind; 0: learning waits for all samples."""
    overhead: float = 1.25
    """Factor on a synchronous step, for data movement, imbalance and logging."""

    def __post_init__(self) -> None:
        rates = ("network", "pcie", "publish", "usable", "overhead")
        check_positive(self, "", above=("devices", "node", "tensor", "sequences", *rates))
        if not 0 <= self.rollout < self.devices:
            raise ValueError(f"rollout is 0 to {self.devices - 1} devices, not {self.rollout}")
        if self.generators % self.tensor:
            raise ValueError(
                f"{self.generators} devices that generate cannot be split into engines of "
                f"tensor={self.tensor}"
            )
        if self.shards and self.learners % self.shards:
            raise ValueError(f"{self.learners} devices that learn do not split by {self.shards}")
        if self.lag and not self.rollout:
            raise ValueError("lag needs devices that only generate: set rollout")

    @property
    def generators(self) -> int:
        """Devices that generate."""
        return self.rollout or self.devices

    @property
    def learners(self) -> int:
        """Devices that learn."""
        return self.devices - self.rollout

    @property
    def engines(self) -> int:
        """Copies of the engine."""
        return self.generators // self.tensor

    @property
    def sharded(self) -> int:
        """Devices that hold one copy of the learner's state."""
        return self.shards or self.learners

    @property
    def width(self) -> int:
        """Bytes of a number in passes and in the engine."""
        return 2 if self.precision == "mixed" else 4

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
    """Where the presets are."""
    return compose.config_folder() / "cluster"


def load_cluster(name: str, overrides: Sequence[str]) -> tuple[ClusterSpec, dict[str, Any]]:
    """A preset or a file, with `overrides` of its keys; and its plain data.

    Raises ConfigError in one line where there is no such cluster, or it makes no sense.
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
        raise ConfigError(f"cluster={name}: no such file; selfplay plan --measure {name} makes one")
    devices = [found.stem for found in (path.parent / "device").glob("*.yaml")]
    for asked in (o.removeprefix("device=") for o in overrides if o.startswith("device=")):
        if asked not in devices:
            raise ConfigError(f"cluster.device={asked}: no such device; {nearest(asked, devices)}")
    # A preset says only what it changes: any key may be set, and what is no key is refused below.
    keys = [o if o.startswith("device=") else f"++{o}" for o in overrides]
    plain = compose.load(keys, name=path.stem, folder=path.parent)
    if TARGET not in plain:
        raise ConfigError(f"cluster={name}: {path} names no {TARGET}")
    made = build(plain, where="cluster")
    if not isinstance(made, ClusterSpec):
        raise ConfigError(f"cluster={name}: {path} describes a {type(made).__name__}")
    return made, plain
