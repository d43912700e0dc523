"""The processes that compute an optimizer step together, and tensors that are sharded over them."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from selfplay.learner.batch import PackedRow


class ProcessGroup(Protocol):
    """Processes that compute an optimizer step together, each with its own samples.

    `Learner` calls it around its micro-batches; `fsdp.ShardedProcessGroup` implements it for many
    ranks.
    """

    def pad_passes(self, rows: Sequence[list[PackedRow]]) -> Sequence[tuple[list[PackedRow], int]]:
        """Return this process's micro-batches, each with the largest number of passes of any
        process.

        Empty micro-batches are added until all processes have equally many.
        """
        ...

    def begin_micro_batch(self, scorer: Any, *, last: bool) -> None:
        """Prepare the scorer of the learner's model for a micro-batch of an optimizer step.

        After the `last` micro-batch of the step, the gradients of all micro-batches must have been
        added over all processes.
        """
        ...

    def sum_metrics(self, metrics: dict[str, float], fault: str) -> tuple[dict[str, float], str]:
        """Return metrics added over all processes, and the first fault of any process."""
        ...


class SingleProcess:
    """A single process, which learns from all samples."""

    def pad_passes(self, rows: Sequence[list[PackedRow]]) -> Sequence[tuple[list[PackedRow], int]]:
        return [(part, 1) for part in rows]

    def begin_micro_batch(self, scorer: Any, *, last: bool) -> None:
        pass

    def sum_metrics(self, metrics: dict[str, float], fault: str) -> tuple[dict[str, float], str]:
        return metrics, fault


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor. If it is sharded, all processes must call this together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
