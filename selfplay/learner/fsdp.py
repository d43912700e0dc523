"""A learner whose tensors are sharded over the ranks of a process group (FSDP2).

Every rank computes a part of a batch's samples (`partition_by_work`). The loss's denominators are
those of the whole batch, so gradients are added over the ranks, not averaged.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import Module, Parameter
from transformers import PreTrainedModel

from selfplay.learner.activation_checkpointing import blocks
from selfplay.learner.batch import Batch, PackedRow, computed, passes, sort_key
from selfplay.learner.learner import Learner
from selfplay.learner.logprobs import NextTokens, Scorer
from selfplay.learner.packing import common
from selfplay.learner.process_group import whole
from selfplay.models.main_memory import in_main_memory
from selfplay.types import Sample


def partition_by_work(samples: Sequence[Sample], count: int, *, packed: bool) -> list[list[int]]:
    """Return indices of the samples by rank: equal work, with neighbours together.

    Samples are sorted by their tokens, so that samples with a common prefix are neighbours. The
    order is cut into parts of about equal work, so that at most `count` - 1 prefixes are computed
    twice.

    Args:
        samples: Samples to compute.
        count: Number of parts; some are empty if there are fewer samples.
        packed: True if neighbours compute a common prefix once.
    """
    if count == 1 or not samples:
        return [list(range(len(samples))), *([] for _ in range(count - 1))]
    ids = [computed(sample) for sample in samples]
    order = sorted(range(len(samples)), key=lambda index: sort_key(ids[index]))
    arrays = [ids[index] for index in order]
    work = [len(array) for array in arrays]
    if packed:
        before = [np.zeros(0, dtype=np.int64), *arrays[:-1]]
        work = [len(now) - common(then, now) for then, now in zip(before, arrays, strict=True)]
    # A sample belongs to the part that holds its middle. Every sample costs at least one token.
    costs = np.maximum(work, 1)
    middles = np.cumsum(costs) - costs / 2
    parts: list[list[int]] = [[] for _ in range(count)]
    for index, middle in zip(order, middles, strict=True):
        parts[int(middle * count / costs.sum())].append(index)
    return [sorted(part) for part in parts]


Spread: TypeAlias = MutableMapping[int, "ShardedScorer"]
"""Scorers of models that are already sharded, by the id of the model; several policies may share a
reference."""


class ShardedScorer(torch.nn.Module):
    """A scorer as the forward pass of a module, because FSDP gathers tensors in forward passes.

    Each of the model's blocks is one unit of communication, and the rest is another.
    """

    def __init__(self, model: PreTrainedModel, scorer: Scorer, mesh: DeviceMesh):
        """Shard the tensors of `model`, which `scorer` scores with, in the scorer's precision."""
        super().__init__()
        self.model, self._scorer = model, scorer
        # Parameters, gradients and optimizer stay in their type; only compute is bfloat16.
        blocks_policy = root_policy = MixedPrecisionPolicy()
        if scorer.bfloat16:
            blocks_policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32
            )
            # The root gets a whole batch, whose temperatures must not be rounded.
            root_policy = replace(blocks_policy, cast_forward_inputs=False)
            scorer.bfloat16 = False  # FSDP gathers the weights in bfloat16, so none is cast again
        for unit, mixed in [
            *((block, blocks_policy) for block in blocks(model)),
            (self, root_policy),
        ]:
            _fill(unit, torch.device(mesh.device_type))
            made: Any = fully_shard(unit, mesh=mesh, mp_policy=mixed)
            made.set_gradient_divide_factor(1.0)
            made.set_force_sum_reduction_for_comms(True)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Run `forward`; then shard the gathered tensors again."""
        result = super().__call__(*given, **named)
        if not torch.is_grad_enabled():  # a backward pass does so itself
            self.reshard()  # type: ignore[operator]  # FSDP's
        return result

    def forward(self, batch: Batch, *, distributions: bool = False, **wanted: Any) -> Any:
        """Return the scorer's [S, C] scores, or with `distributions` those of the next tokens."""
        if distributions:
            return self._scorer.next_tokens(batch, keep=True)
        return self._scorer(batch, **wanted)

    def next_tokens(self, batch: Batch) -> NextTokens:
        """Return the distributions of the next token at `batch.places`, without gradients."""
        found: NextTokens = self(batch, distributions=True)
        return found


class ShardedProcessGroup:
    """The ranks of a process group, which learn together."""

    def pad_passes(self, rows: Sequence[list[PackedRow]]) -> Sequence[tuple[list[PackedRow], int]]:
        """Return this rank's micro-batches, each with the largest number of passes of any rank.

        Empty micro-batches are added until all ranks have equally many, because ranks wait for each
        other's weights in every pass.
        """
        by_rank: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(by_rank, [passes(part) for part in rows])
        most = [max(counts) for counts in zip_longest(*by_rank, fillvalue=1)]
        return list(zip([*rows, *([] for _ in most[len(rows) :])], most, strict=True))

    def begin_micro_batch(self, scorer: ShardedScorer, *, last: bool) -> None:
        """Add gradients over the copies of the state (HSDP) in the last micro-batch only.

        Copies are usually on different nodes, whose network is slow. In earlier micro-batches a
        rank adds only the gradients of its own copy. These sums take no additional memory: the sum
        over all copies takes their place.
        """
        scorer.set_requires_all_reduce(last)  # type: ignore[operator]  # FSDP's

    def sum_metrics(self, metrics: dict[str, float], fault: str) -> tuple[dict[str, float], str]:
        """Return metrics added over all ranks, in the order of ranks, and the first fault of any
        rank."""
        by_rank: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(by_rank, (metrics, fault))
        total = {name: sum(values[name] for values, _ in by_rank) for name in metrics}
        return total, next((fault for _, fault in by_rank if fault), "")


def spread(learner: Learner, mesh: DeviceMesh, *, known: Spread) -> None:
    """Shard a learner's model and reference over the ranks of a mesh, before its first update.

    Args:
        learner: Learner; its parameters get the data of the first rank, and other ranks may have
            them without data (`outline.shared`).
        mesh: Mesh of all ranks: [ranks] for one copy of the tensors, or [copies, ranks of a copy].
        known: Scorers that were sharded for other learners.
    """
    # Each unit gets its whole tensors, on the GPU if there is one, and is sharded. No other object
    # may keep the whole tensors in memory.
    learner.forget_parameters()
    learner.scorer = _cut(learner.model, learner.scorer, mesh, known)
    learner.references.shard(lambda model, scorer: _cut(model, scorer, mesh, known))
    learner.peers = ShardedProcessGroup()
    learner.make_optimizer()


def _fill(unit: Module, device: torch.device) -> None:
    """Replace the parameters of a unit, except those that are sharded already, by new ones with the
    first rank's data.

    The old ones are left as they are, because models of other policies may share them.
    """
    made: dict[Parameter, Parameter] = {}
    for module in unit.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if isinstance(parameter, DTensor):
                continue
            if parameter not in made:
                tensor = _received(parameter.detach(), device)
                made[parameter] = Parameter(tensor, requires_grad=parameter.requires_grad)
            setattr(module, name, made[parameter])


def _received(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the first rank's tensor on the device; `tensor` may be without data on other ranks."""
    if dist.get_rank() == 0:
        found = tensor.to(device).contiguous()
    else:
        found = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    dist.broadcast(found.view(-1).view(torch.uint8), src=0)  # backends lack some types
    return found


def _cut(model: PreTrainedModel, scorer: Any, mesh: DeviceMesh, known: Spread) -> ShardedScorer:
    if id(model) not in known:
        known[id(model)] = ShardedScorer(model, scorer, mesh)
    return known[id(model)]


def gather(learner: Learner, *, keep: bool, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Return the whole trained weights by name, in main memory. All ranks call this together.

    Args:
        learner: Learner with the weights.
        keep: True if this rank wants the weights; the other ranks only send their parts.
        dtype: Type of the result; None: that of the weights.
    """
    weights = {}
    for name, parameter in learned(learner.model).items():
        tensor = whole(parameter.detach())
        if keep:
            weights[name] = in_main_memory(tensor.to(dtype=dtype or tensor.dtype))
    return weights


def take(learner: Learner, weights: Mapping[str, Tensor]) -> None:
    """Copy these weights into the trained parameters."""
    with torch.no_grad():
        for name, parameter in learned(learner.model).items():
            parameter.copy_(like(parameter, weights[name]))


def like(pattern: Tensor, tensor: Tensor) -> Tensor:
    """Return a whole tensor sharded like another, without communication."""
    moved = tensor.to(device=pattern.device, dtype=pattern.dtype)
    if not isinstance(pattern, DTensor):
        return moved
    return distribute_tensor(moved, pattern.device_mesh, pattern.placements, src_data_rank=None)


def learned(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters of a model by name."""
    return {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
