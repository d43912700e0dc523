"""Checks that an adapter has arrived in vLLM, by sums of the tensors with which vLLM computes.

vLLM copies an adapter from its folder into one place of tensors that all adapters share, in the
engine's type, and multiplies the matrices B by the adapter's scaling. The sums here are those of
all matrices A and of all matrices B together. They show every lost or partial update, also one that
is below the rounding error of log-probabilities.

Adapters of an engine that is divided into shards are not compared: some of the matrices are in one
shard, others in all.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from selfplay.engines.vllm.weight_check import Sums, WeightMismatch, tensor_sums

AdapterSums: TypeAlias = tuple[Sums, Sums]
"""Sums of all matrices A, and of all matrices B times the scaling."""


def held_sums(engine: Module, number: int) -> AdapterSums:
    """Return the sums of an adapter as vLLM's model computes with it; 0 if it has no place there.

    Args:
        engine: vLLM's model.
        number: vLLM's number of the adapter.
    """
    manager: Any = getattr(engine, "lora_manager", None)
    if manager is None or number not in manager.lora_index_to_id:
        return (0, 0), (0, 0)
    place = manager.lora_index_to_id.index(number)  # numbers beyond the adapter's rank are 0 there
    layers = {id(layer): layer for layer in manager.modules.values()}.values()
    first, second = (
        [each[place] for layer in layers for each in _tensors(getattr(layer, name, ()))]
        for name in ("lora_a_stacked", "lora_b_stacked")
    )
    return _sums(first), _sums(second)


def sent_sums(model: PreTrainedModel, dtype: torch.dtype) -> AdapterSums | None:
    """Return the sums that vLLM must have for the adapter of a model.

    Args:
        model: The model with the adapter.
        dtype: Type in which vLLM holds it.

    Returns None for an adapter with other parts than the matrices of linear layers.
    """
    first, second = [], []
    for layer in _adapted(model):
        if layer.lora_embedding_A or any(getattr(layer, "use_dora", {}).values()):
            return None
        for name, matrix in layer.lora_A.items():
            first.append(matrix.weight.detach().to("cpu", dtype))  # where vLLM rounds too
            second.append(layer.lora_B[name].weight.detach().to("cpu", dtype) * layer.scaling[name])
    return _sums(first), _sums(second)


class AdapterArrival:
    """Compares the sums of adapters in vLLM with those of the adapters that it received.

    The first load of matrices that are not 0 shows whether vLLM holds them in this form; the
    log-probabilities prove this load. If vLLM does not, they are not compared.
    """

    def __init__(self) -> None:
        self.compared: dict[str, bool] = {}
        """True if the matrices are compared, by their kind, A or B, after the first load."""

    def check(self, held: AdapterSums, sent: AdapterSums) -> None:
        """Raise WeightMismatch if vLLM has other matrices than those of the model."""
        for kind, own, wanted in zip("AB", held, sent, strict=True):
            if kind not in self.compared:
                if wanted != (0, 0):  # a new adapter's matrices B
                    self.compared[kind] = own == wanted
            elif self.compared[kind] and own != wanted:
                raise WeightMismatch(f"the adapter's matrices {kind} have other numbers in vLLM")


def _adapted(model: PreTrainedModel) -> Iterator[Any]:
    """Yield the layers of a model that have an adapter."""
    for layer in model.modules():
        if hasattr(layer, "lora_A"):
            yield layer


def _tensors(stacked: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the tensors of one kind in a layer; layers that vLLM does not fuse have one."""
    return [stacked] if isinstance(stacked, Tensor) else stacked


def _sums(tensors: Sequence[Tensor]) -> Sums:
    """Return the sums of several tensors together, with one pass over all of them."""
    if not tensors:
        return 0, 0
    return tensor_sums(torch.cat([tensor.flatten() for tensor in tensors]))
