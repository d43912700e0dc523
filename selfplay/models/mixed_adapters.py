"""One pass for rows of several adapters over the same base: each row goes through its own adapter.

The base is computed once for all rows, as in Punica (2310.18547) and S-LoRA (2311.03285). The
results are those of one pass per adapter, up to rounding.
"""

import copy
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

Rows: TypeAlias = slice | Tensor
"""Rows of a pass; a slice if they are neighbours, because a slice is not copied."""


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """The adapter of one layer: the policy's own tensors, so that it follows the training."""

    down: Tensor
    """[rank, inputs] A."""
    up: Tensor
    """[outputs, rank] B."""
    scale: float
    """alpha / rank."""


class Assignment:
    """The rows of the current pass that belong to each policy.

    `MixedAdapters` fills it before a pass; every `MixedLinear` reads it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.groups: list[tuple[int, Rows]] = []

    def set(self, owners: Sequence[int], device: torch.device) -> None:
        """Give each row of the next pass to a policy.

        Args:
            owners: [R] number of the policy of each row.
            device: Device of the model.
        """
        self.count = len(owners)
        places: dict[int, list[int]] = {}
        for row, owner in enumerate(owners):
            places.setdefault(owner, []).append(row)
        self.groups = [(owner, _indices(rows, device)) for owner, rows in places.items()]


def _indices(rows: Sequence[int], device: torch.device) -> Rows:
    """Return ascending rows as an index; they are a slice if none is left out between them."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)


class MixedLinear(nn.Module):
    """A layer of the base and its adapters; rows without an adapter are those of the base."""

    def __init__(self, base: nn.Module, assignment: Assignment) -> None:
        super().__init__()
        self.base, self.assignment = base, assignment
        self.adapters: dict[int, LowRank] = {}
        """Adapters by the number of their policy."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [R, N, outputs] of [R, N, inputs].

        Raises ValueError for inputs of another shape, such as the tokens of one expert: their rows
        are not known.
        """
        if inputs.ndim != 3 or len(inputs) != self.assignment.count:
            raise ValueError(f"inputs of shape {list(inputs.shape)} have no rows of their own")
        outputs: Tensor = self.base(inputs)
        for owner, rows in self.assignment.groups:
            if (adapter := self.adapters.get(owner)) is not None:
                low = linear(inputs[rows].to(adapter.down.dtype), adapter.down)
                outputs[rows] += linear(low, adapter.up) * adapter.scale
        return outputs


class MixedAdapters:
    """The base of several adapters, as a model that computes rows of all of them in one pass.

    `PolicyBatch` makes it for policies with equal keys (`base_key`). Call `assign` before a pass of
    `model`. Policies may join and leave between passes.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """`model`: a policy's model; its modules are copied without its adapter, its tensors are
        shared."""
        tensors = chain(model.parameters(), model.buffers())
        self.model = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()
        for path, layer in adapter_layers(self.model).items():
            self.model.set_submodule(path, layer.base_layer)
        self._assignment = Assignment()
        self._mixed: dict[str, MixedLinear] = {}

    def join(self, number: int, model: PreTrainedModel) -> None:
        """Add the adapter of a policy; a model without an adapter adds nothing."""
        for path, layer in adapter_layers(model).items():
            if path not in self._mixed:
                mixed = MixedLinear(self.model.get_submodule(path), self._assignment)
                self.model.set_submodule(path, mixed)
                self._mixed[path] = mixed
            (name,) = layer.active_adapters
            self._mixed[path].adapters[number] = LowRank(
                down=layer.lora_A[name].weight,
                up=layer.lora_B[name].weight,
                scale=layer.scaling[name],
            )

    def leave(self, number: int) -> None:
        """Remove the adapter of a policy."""
        for mixed in self._mixed.values():
            mixed.adapters.pop(number, None)

    def assign(self, owners: Sequence[int]) -> None:
        """Give each row of the next pass to a policy.

        Args:
            owners: [R] number of the policy of each row.
        """
        self._assignment.set(owners, self.model.device)


def base_key(model: PreTrainedModel) -> Hashable | None:
    """Return a key that models have in common if they differ only in their adapters.

    None if an adapter has more parts than the matrices A and B, so that only the model itself can
    compute it.
    """
    if not all(map(_plain, adapter_layers(model).values())):
        return None
    owned = {id(tensor) for tensor in _adapter_tensors(model)}
    shared = tuple(sorted({id(tensor) for tensor in model.parameters()} - owned))
    return type(model), model.config._attn_implementation, shared


def twin(model: PreTrainedModel, *, seed: int) -> PreTrainedModel:
    """Return the model with a random adapter of the same shape, over the same base."""
    owned = {id(tensor) for tensor in _adapter_tensors(model)}
    shared = {id(tensor): tensor for tensor in model.parameters() if id(tensor) not in owned}
    made = copy.deepcopy(model, shared).requires_grad_(False)
    for number, tensor in enumerate(_adapter_tensors(made)):
        source = torch.Generator().manual_seed(1000 * seed + number)
        tensor.copy_(torch.randn(tensor.shape, generator=source) / tensor.shape[1] ** 0.5)
    return made


def adapter_layers(model: nn.Module) -> Mapping[str, Any]:
    """Return the layers of a model that have an adapter, by their paths."""
    if "peft" not in sys.modules:  # nothing has made one
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer

    return {
        path: module for path, module in model.named_modules() if isinstance(module, BaseTunerLayer)
    }


def _plain(layer: Any) -> bool:
    """Return True for a layer that computes W x + scale B A x with one A and one B."""
    from peft.tuners.lora import Linear

    if type(layer) is not Linear or layer.merged or layer.disable_adapters:
        return False
    names = list(layer.active_adapters)
    if len(names) != 1 or list(layer.lora_A) != names:
        return False
    (name,) = names
    return (
        name not in layer.lora_variant
        and layer.lora_A[name].bias is None
        and layer.lora_B[name].bias is None
    )


def _adapter_tensors(model: nn.Module) -> list[Tensor]:
    """Return A and B of all layers."""
    pairs = ((layer.lora_A, layer.lora_B) for layer in adapter_layers(model).values())
    return [tensor for part in chain.from_iterable(pairs) for tensor in part.parameters()]
