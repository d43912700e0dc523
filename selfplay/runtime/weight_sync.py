"""Updates that the driver sends to its workers: weights, snapshots, states of services."""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from selfplay.errors import RunError
from selfplay.models.main_memory import in_main_memory

Packed: TypeAlias = Mapping[str, tuple[np.ndarray, str, tuple[int, ...]]]
"""Weights by name as (bytes, dtype, shape): Ray shares arrays between processes, not tensors."""


@dataclass(frozen=True, kw_only=True)
class AddPolicy:
    """Serve a new snapshot of a policy."""

    policy: str
    """Name of the snapshot."""
    player: str
    """Name of the policy that it is a copy of."""


@dataclass(frozen=True, kw_only=True)
class UpdateWeights:
    """Sample with new weights of a policy."""

    policy: str
    """Name of the policy."""
    weights: Any
    """Reference to the packed weights, or the packed weights; None changes only the version."""
    version: int
    """Version of the weights."""
    checksums: Mapping[str, int] = field(default_factory=dict)
    """Checksum of every sent tensor by name, from the process that learned it."""


@dataclass(frozen=True, kw_only=True)
class LoadState:
    """Load the current state of a service of the driver."""

    service: str
    """Name of the service."""
    state: bytes
    """The service's pickled `state_dict`."""


@dataclass(frozen=True, kw_only=True)
class RemovePolicy:
    """Stop serving a snapshot."""

    policy: str
    """Name of the snapshot."""


@dataclass(frozen=True, kw_only=True)
class OffloadPolicy:
    """Free the memory of a policy that plays no episodes for a while."""

    policy: str
    """Name of the policy."""


Change: TypeAlias = AddPolicy | UpdateWeights | LoadState | RemovePolicy | OffloadPolicy
"""An update that the driver sends to workers."""


@dataclass(kw_only=True)
class SyncState:
    """The result of all updates so far. A new worker starts from it."""

    number: int = 0
    """Number of updates so far."""
    served: dict[str, AddPolicy] = field(default_factory=dict)
    """The snapshots that are served, by name."""
    published: dict[str, UpdateWeights] = field(default_factory=dict)
    """The latest weights, by policy."""
    loaded: dict[str, LoadState] = field(default_factory=dict)
    """The latest state, by service."""

    def add(self, change: Change) -> None:
        """Add one more update."""
        self.number += 1
        match change:
            case AddPolicy():
                self.served[change.policy] = change
            case UpdateWeights():
                before = self.published.get(change.policy)
                if change.weights is None and before is not None:
                    change = replace(before, version=change.version)
                self.published[change.policy] = change
            case LoadState():
                self.loaded[change.service] = change
            case RemovePolicy():
                self.served.pop(change.policy, None)
                self.published.pop(change.policy, None)

    def changes(self) -> list[Change]:
        """Return the updates for a new worker, in an order in which it can apply them."""
        return [*self.loaded.values(), *self.served.values(), *self.published.values()]


@dataclass(frozen=True, kw_only=True)
class RemoteWeights:
    """Weights in the cluster's object store, which the driver has not read."""

    packed: Any
    """Reference to the packed weights."""
    checksums: Mapping[str, int]
    """Checksum of every tensor by name."""


def pack(weights: Mapping[str, torch.Tensor], names: Collection[str]) -> Packed:
    """Return the weights of these names as bytes, which share memory with tensors on a CPU.

    Raises RuntimeError if one is missing.
    """
    absent = [name for name in names if name not in weights]
    if absent:
        raise RuntimeError(f"{len(absent)} learned tensors are not published, such as {absent[0]}")
    return {
        name: (
            in_main_memory(weights[name]).contiguous().flatten().view(torch.uint8).numpy(),
            str(weights[name].dtype).removeprefix("torch."),
            tuple(weights[name].shape),
        )
        for name in names
    }


def unpack(packed: Packed) -> dict[str, torch.Tensor]:
    """Return packed weights as tensors; they share memory and must not be written to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of an array that cannot be written to
        return {
            name: torch.from_numpy(array).view(getattr(torch, kind)).reshape(shape)
            for name, (array, kind, shape) in packed.items()
        }


WORD = 8
"""Bytes of a word of a checksum."""
PIECE = 2**21
"""Bytes that are copied and summed at a time: 2 MiB, which a processor's cache keeps meanwhile."""


def checksum(tensor: torch.Tensor) -> int:
    """Return a checksum of a tensor's bytes: their sum as words of 64 bits, modulo 2^64.

    The bytes after the last whole word are added one by one. The result is the same on every
    device, because it does not depend on the order of the sum. A change of any single bit changes
    the result. In main memory the sum takes one thread, so that it can run during a copy.
    """
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    if flat.storage_offset() % WORD:
        flat = flat.clone()
    whole = flat.numel() // WORD * WORD
    words = flat[:whole].view(torch.int64)
    total = int(words.numpy().sum()) if words.device.type == "cpu" else int(words.sum())
    return (total + int(flat[whole:].long().sum())) % 2**64


def copy_and_sum(source: torch.Tensor, target: torch.Tensor) -> int:
    """Copy a tensor into another one; return the `checksum` of the target after the copy.

    In main memory the target is read back piece by piece, while the processor's cache has the
    piece. On a GPU, or if a tensor is not contiguous or not aligned to words, the target is read
    after the whole copy.
    """
    source, target = source.detach(), target.detach()
    pieces = (
        target.device.type == "cpu"
        and source.shape == target.shape
        and source.is_contiguous()
        and target.is_contiguous()
        and target.storage_offset() * target.itemsize % WORD == 0
    )
    if not pieces:
        target.copy_(source)
        return checksum(target)
    flat = target.view(-1).view(torch.uint8)
    whole = flat.numel() // WORD * WORD
    words = flat[:whole].view(torch.int64)
    size, length, begin, total = PIECE // target.itemsize, PIECE // WORD, 0, 0
    for piece, place in zip(source.view(-1).split(size), target.view(-1).split(size), strict=True):
        place.copy_(piece)
        total += int(words[begin : begin + length].sum())
        begin += length
    return (total + int(flat[whole:].long().sum())) % 2**64


def receive(
    policy: str,
    model: torch.nn.Module,
    weights: Mapping[str, torch.Tensor],
    checksums: Mapping[str, int],
    version: int,
) -> dict[str, torch.Tensor]:
    """Copy weights that were sent into a model; return the model's own tensors of these names.

    Raises RunError if the model does not have the weights that were sent for it.

    Args:
        policy: Name of the policy, for the error.
        model: Model that receives the weights.
        weights: Weights by name; without any, the model must have what was sent already.
        checksums: Checksum by the name of every sent tensor.
        version: Version of the weights, for the error.
    """
    own = dict(model.named_parameters())
    arrived = {name: copy_and_sum(tensor, own[name]) for name, tensor in weights.items()}
    lost = [
        name
        for name, sent in checksums.items()
        if sent != (arrived[name] if name in arrived else checksum(own[name]))
    ]
    if lost:
        raise RunError(
            f"policy {policy!r}: {len(lost)} of {len(checksums)} tensors of version {version} did "
            f"not arrive, such as {lost[0]}; continue with selfplay train resume=RUN"
        )
    return {name: own[name] for name in weights}
