"""Checks that an adapter has arrived in vLLM, by sums of the tensors with which vLLM computes.

vLLM copies an adapter from its folder into one place of tensors that all adapters share, in the
engine's type, and multiplies the matrices B by the adapter's scaling. The sums here are those of
all matrices A and of all matrices B together. They show a lost or partial update also if it is
below the rounding error of log-probabilities.

Adapters of an engine that is divided into shards are not compared: each shard has its part of some
matrices and all of the others.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from selfplay.engines.vllm.weight_check import Sums, WeightMismatch, added, tensor_sums

AdapterSums: TypeAlias = tuple[Sums, Sums]
"""Sums of all matrices A, and of all matrices B times the scaling."""


def held_sums(engine: Module, number: int) -> AdapterSums | None:
    """Return the sums of an adapter as vLLM's model computes with it; 0 if it has no place there.

    Args:
        engine: vLLM's model.
        number: vLLM's number of the adapter.

    Returns None if a layer holds adapters in another form than a linear layer's, as experts do.
    """
    manager: Any = getattr(engine, "lora_manager", None)
    layers = {} if manager is None else {id(each): each for each in manager.modules.values()}
    held = [
        (layer.lora_a_stacked, layer.lora_b_stacked) for layer in layers.values() if _linear(layer)
    ]
    if not held or len(held) < len(layers):
        return None
    if number not in manager.lora_index_to_id:
        return (0, 0), (0, 0)
    place = manager.lora_index_to_id.index(number)  # numbers beyond the adapter's rank are 0 there
    first, second = (
        [tensor[place] for stacked in kind for tensor in _tensors(stacked)]
        for kind in zip(*held, strict=True)
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

    The matrices A of the first load, which are never 0, show whether vLLM holds adapters in this
    form; if it does not, no adapter is compared.
    """

    def __init__(self) -> None:
        self.compared: bool | None = None
        """True if adapters are compared; None before the first load."""

    def check(self, held: AdapterSums | None, sent: AdapterSums | None) -> None:
        """Raise WeightMismatch if vLLM has other matrices than those of the model.

        None stands for an adapter or an engine without such sums.
        """
        if held is None or sent is None:
            self.compared = False
            return
        if self.compared is None:
            if held[0] == (0, 0):
                raise WeightMismatch("vLLM has no matrices of the adapter")
            self.compared = held[0] == sent[0]
        for kind, own, wanted in zip("AB", held, sent, strict=True):
            if self.compared and own != wanted:
                raise WeightMismatch(f"the adapter's matrices {kind} have other numbers in vLLM")


def _adapted(model: PreTrainedModel) -> Iterator[Any]:
    """Yield the layers of a model that have an adapter."""
    for layer in model.modules():
        if hasattr(layer, "lora_A"):
            yield layer


def _linear(layer: Any) -> bool:
    """Return True for a layer of vLLM that holds the matrices A and B of one linear layer, or of
    several that vLLM fused."""
    return hasattr(layer, "lora_a_stacked") and not hasattr(layer, "w13_lora_a_stacked")


def _tensors(stacked: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the tensors of one kind in a layer; layers that vLLM does not fuse have one."""
    return [stacked] if isinstance(stacked, Tensor) else stacked


def _sums(tensors: Iterable[Tensor]) -> Sums:
    """Return the sums of several tensors together."""
    return added(map(tensor_sums, tensors))
