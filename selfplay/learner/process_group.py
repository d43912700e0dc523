"""The processes that compute an optimizer step together, and tensors that are cut among them."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from torch import Tensor

from selfplay.learner.batch import PackedRow

Precision: TypeAlias = Literal["float32", "bfloat16"]


class ProcessGroup(Protocol):
    """The processes that compute an optimizer step together, each on samples of its own."""

    def pad_passes(self, rows: Sequence[list[PackedRow]]) -> Sequence[tuple[list[PackedRow], int]]:
        """The rows of this process's micro-batches with the passes that any process needs for its
        own, and as many empty ones as others have more."""
        ...

    def sum_metrics(self, figures: dict[str, float], fault: str) -> tuple[dict[str, float], str]:
        """Figures added up over all processes, and the first fault of any."""
        ...


class SingleProcess:
    """One process, which learns from all samples itself."""

    def pad_passes(self, rows: Sequence[list[PackedRow]]) -> Sequence[tuple[list[PackedRow], int]]:
        """As they are."""
        return [(held, 1) for held in rows]

    def sum_metrics(self, figures: dict[str, float], fault: str) -> tuple[dict[str, float], str]:
        """As they are."""
        return figures, fault


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; of one that is cut, all processes ask together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard(tensor: Tensor) -> Tensor:
    """What this process has of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
