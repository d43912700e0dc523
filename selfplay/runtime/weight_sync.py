"""What the driver tells its workers: weights, snapshots that come and go, what services hold."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch

Packed: TypeAlias = Mapping[str, tuple[np.ndarray, str, tuple[int, ...]]]
"""Weights by name as bytes, type and shape: Ray shares arrays between processes, not tensors."""


@dataclass(frozen=True, kw_only=True)
class AddPolicy:
    """A snapshot can be seated from now on."""

    policy: str
    """Its name."""
    player: str
    """Whose copy it is."""


@dataclass(frozen=True, kw_only=True)
class UpdateWeights:
    """A policy samples with these weights from now on."""

    policy: str
    """Its name."""
    weights: Any
    """A reference to what `pack` made; None leaves them as they are."""
    version: int
    """Of the weights."""


@dataclass(frozen=True, kw_only=True)
class LoadState:
    """What a service of the driver holds now."""

    service: str
    """Its name."""
    state: bytes
    """Pickled: what its `state_dict` gave."""


@dataclass(frozen=True, kw_only=True)
class RemovePolicy:
    """A snapshot is not seated any more."""

    policy: str
    """Its name."""


@dataclass(frozen=True, kw_only=True)
class OffloadPolicy:
    """A policy does not play for a while."""

    policy: str
    """Its name."""


Change: TypeAlias = AddPolicy | UpdateWeights | LoadState | RemovePolicy | OffloadPolicy


@dataclass(kw_only=True)
class SyncState:
    """What all changes so far come to: all that a new worker needs to be told."""

    number: int = 0
    """Changes so far."""
    served: dict[str, AddPolicy] = field(default_factory=dict)
    published: dict[str, UpdateWeights] = field(default_factory=dict)
    loaded: dict[str, LoadState] = field(default_factory=dict)

    def book(self, change: Change) -> None:
        """Count one more change."""
        self.number += 1
        match change:
            case AddPolicy():
                self.served[change.policy] = change
            case UpdateWeights():
                before = self.published.get(change.policy)
                if change.weights is None and before is not None:
                    change = replace(change, weights=before.weights)
                self.published[change.policy] = change
            case LoadState():
                self.loaded[change.service] = change
            case RemovePolicy():
                self.served.pop(change.policy, None)
                self.published.pop(change.policy, None)

    def changes(self) -> list[Change]:
        """In an order in which they can be followed."""
        return [*self.loaded.values(), *self.served.values(), *self.published.values()]


def pack(weights: Mapping[str, torch.Tensor], names: Collection[str]) -> Packed:
    """The weights of these names; raises RuntimeError where one of them is not there."""
    absent = [name for name in names if name not in weights]
    if absent:
        raise RuntimeError(f"{len(absent)} learned tensors are not published, {absent[0]} is one")
    return {
        name: (
            weights[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy(),
            str(weights[name].dtype).removeprefix("torch."),
            tuple(weights[name].shape),
        )
        for name in names
    }


def unpack(packed: Packed) -> dict[str, torch.Tensor]:
    """The weights, which must not be written to: their memory is shared."""
    return {
        name: torch.from_numpy(array).view(getattr(torch, kind)).reshape(shape)
        for name, (array, kind, shape) in packed.items()
    }
