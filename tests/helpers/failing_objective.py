"""An objective whose loss or gradient is not finite at chosen calls."""

from dataclasses import dataclass, field
from typing import Literal

import torch

from selfplay.learner.objective import BatchCounts, LossInputs, PolicyLoss


@dataclass(frozen=True, kw_only=True)
class FailingLoss(PolicyLoss):
    """A REINFORCE loss that fails at the micro-batches whose numbers, from 0, are in `fails`."""

    ratio: Literal["none"] = "none"
    clip: Literal["none"] = "none"
    fails: frozenset[int] = frozenset()
    where: Literal["loss", "gradient"] = "loss"
    seen: list[int] = field(default_factory=list)

    def loss(
        self, scores: LossInputs, totals: BatchCounts
    ) -> tuple[torch.Tensor, dict[str, float]]:
        loss, diagnostics = super().loss(scores, totals)
        self.seen.append(0)
        if len(self.seen) - 1 in self.fails:
            if self.where == "loss":
                loss = loss * float("nan")
            else:  # the gradient is NaN: the infinite derivative of the root at 0, times 0
                loss = loss + (scores.logprobs.sum() * 0).abs().sqrt()
        return loss, diagnostics
