"""A learner whose tensors are cut among the ranks of a process group (FSDP2).

Every rank computes its share of a batch's samples. The loss's denominators are those of the whole
batch, so gradients are added up over the ranks, not averaged.

The samples of a batch cut into shares, one for each rank.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from selfplay.learner.activation_checkpointing import blocks
from selfplay.learner.batch import Batch, PackedRow, computed, passes
from selfplay.learner.learner import Learner
from selfplay.learner.packing import common
from selfplay.learner.process_group import Precision, whole
from selfplay.types import Sample


def partition_by_work(samples: Sequence[Sample], count: int, *, packed: bool) -> list[list[int]]:
    """Indices of the samples by share: of about equal work, and with neighbours together.

    Sorted by their tokens, samples that share a prefix are neighbours. The order is cut in places
    of equal work, so that at most `count` - 1 prefixes are computed twice.

    Args:
        samples: What is to be computed.
        count: Number of shares; some are empty where there are fewer samples.
        packed: Whether neighbours may compute what they share once.
    """
    if count == 1 or not samples:
        return [list(range(len(samples))), *([] for _ in range(count - 1))]
    ids = [computed(sample) for sample in samples]
    order = sorted(range(len(samples)), key=ids.__getitem__)
    arrays = [np.array(ids[index], dtype=np.int64) for index in order]
    work = [len(each) for each in arrays]
    if packed:
        before = [np.zeros(0, dtype=np.int64), *arrays[:-1]]
        work = [len(now) - common(then, now) for then, now in zip(before, arrays, strict=True)]
    # A sample belongs where its middle falls; one that is another's whole prefix costs something.
    costs = np.maximum(work, 1)
    middles = np.cumsum(costs) - costs / 2
    found: list[list[int]] = [[] for _ in range(count)]
    for index, middle in zip(order, middles, strict=True):
        found[int(middle * count / costs.sum())].append(index)
    return [sorted(share) for share in found]


Spread: TypeAlias = MutableMapping[int, "ShardedScorer"]
"""What is cut already, by the id of its model: several policies may have one reference."""


class ShardedScorer(torch.nn.Module):
    """A scorer as the forward pass of a module, which is when FSDP puts tensors together.

    Each of the model's blocks is one unit of communication, and all else is another.
    """

    def __init__(self, model: PreTrainedModel, scorer: Any, mesh: DeviceMesh, precision: Precision):
        """Cut the tensors of `model`, which `scorer` scores with."""
        super().__init__()
        self.model, self._scorer = model, scorer
        # What is cut, summed and stepped stays as it is; bfloat16 is what is computed in.
        mixed = MixedPrecisionPolicy()
        if precision == "bfloat16":
            mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        units = [*blocks(model), self]
        for unit in units:
            made: Any = fully_shard(unit, mesh=mesh, mp_policy=mixed)
            made.set_gradient_divide_factor(1.0)
            made.set_force_sum_reduction_for_comms(True)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """As `forward`; what was put together for it is cut again."""
        found = super().__call__(*given, **named)
        if not torch.is_grad_enabled():  # a backward pass does so itself
            self.reshard()  # type: ignore[operator]  # FSDP's
        return found

    def forward(self, batch: Batch, *, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """As the scorer."""
        found: tuple[Tensor, Tensor | None] = self._scorer(batch, entropy=entropy)
        return found


class ShardedProcessGroup:
    """The ranks of a process group."""

    def pad_passes(self, rows: Sequence[list[PackedRow]]) -> Sequence[tuple[list[PackedRow], int]]:
        """The rows of this rank's micro-batches with the passes that any rank needs for its own,
        and as many empty ones as others have more.

        In every pass ranks wait for each other's part of the weights, so all make equally many.
        """
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, [passes(held) for held in rows])
        most = [max(each) for each in zip_longest(*found, fillvalue=1)]
        return list(zip([*rows, *([] for _ in most[len(rows) :])], most, strict=True))

    def sum_metrics(self, figures: dict[str, float], fault: str) -> tuple[dict[str, float], str]:
        """Figures added up over all ranks, in their order, and the first fault of any."""
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, (figures, fault))
        total = {name: sum(each[name] for each, _ in found) for name in figures}
        return total, next((fault for _, fault in found if fault), "")


def spread(learner: Learner, mesh: DeviceMesh, *, precision: Precision, known: Spread) -> None:
    """Cut a learner's model and reference among the ranks of a mesh, before its first update.

    Args:
        learner: The same on every rank.
        mesh: Of one dimension.
        precision: What forward and backward passes compute in.
        known: What was cut for other learners.
    """
    learner.scorer = _cut(learner.model, learner.scorer, mesh, precision, known)
    if learner.reference is not None:
        reference = _cut(learner.reference, learner.reference_scorer, mesh, precision, known)
        learner.reference_scorer = reference
    learner.peers = ShardedProcessGroup()
    learner.use_parameters()


def _cut(
    model: PreTrainedModel, scorer: Any, mesh: DeviceMesh, precision: Precision, known: Spread
) -> ShardedScorer:
    if id(model) not in known:
        known[id(model)] = ShardedScorer(model, scorer, mesh, precision)
    return known[id(model)]


def gather(learner: Learner, *, keep: bool) -> dict[str, Tensor]:
    """The whole weights of what learns, by name, in main memory; all ranks ask together.

    Args:
        learner: Whose.
        keep: Whether this rank wants them. The others only give their part.
    """
    found = {}
    for name, parameter in learned(learner.model).items():
        tensor = whole(parameter.detach())
        if keep:
            found[name] = tensor.cpu()
    return found


def take(learner: Learner, weights: Mapping[str, Tensor]) -> None:
    """Go on with these weights of what learns."""
    with torch.no_grad():
        for name, parameter in learned(learner.model).items():
            parameter.copy_(like(parameter, weights[name]))


def like(pattern: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor cut as another is, without any communication."""
    moved = tensor.to(device=pattern.device, dtype=pattern.dtype)
    if not isinstance(pattern, DTensor):
        return moved
    return distribute_tensor(moved, pattern.device_mesh, pattern.placements, src_data_rank=None)


def learned(model: torch.nn.Module) -> dict[str, Tensor]:
    """What learns of a model, by name."""
    return {name: each for name, each in model.named_parameters() if each.requires_grad}
