"""Pass@k: an answer is judged by what it adds to the chance that one of k answers is right."""

from collections.abc import Mapping, Sequence
from math import comb
from typing import Any

import numpy as np

from selfplay.credit.base import (
    Floats,
    GroupBy,
    GroupRelative,
    group_relative,
    learnable_turns,
    own_return,
)
from selfplay.types import Group, Sample


class PassAtK(GroupRelative):
    """A_right = (1 - rho) / sigma, A_wrong = (1 - rho - C(W-1, k-1) / C(N-1, k-1)) / sigma.

    rho = 1 - C(W, k) / C(N, k) is the share of k-subsets of N answers, W of them wrong, that hold
    a right one, and sigma = sqrt(rho (1 - rho)) their spread (2508.10751). The advantages of a
    group add up to zero.

    Without the division (`std=False`) the expected gradient is (N-k)/(N k) times the gradient of
    pass@k itself, 1 - (1 - p)^k: each answer's own subsets are in rho. This holds if the agent
    answers in all N siblings. An agent that sits out is compared with the siblings in which it has
    a turn: their number is then N, which varies from group to group, and groups of k or fewer have
    no signal. With the division, biased as in GRPO.
    Failure mode: groups in which fewer than k are wrong have no signal, so what is mostly solved is
    left alone, and so are groups of no more than k answers.
    """

    def __init__(
        self,
        *,
        k: int = 4,
        threshold: float = 0.0,
        group_by: GroupBy = "role",
        std: bool = True,
    ) -> None:
        """An answer is right if it was paid more than `threshold`; `std` divides by sigma."""
        super().__init__(group_by=group_by)
        if k < 1:
            raise ValueError(f"k is at least 1, not {k}")
        self.k, self.threshold, self.std = k, threshold, std

    @classmethod
    def min_group_size(cls, settings: Mapping[str, Any]) -> int:
        """More than k, or every subset of k is nearly the whole group."""
        return int(settings.get("k", 4)) + 1 if super().min_group_size(settings) > 1 else 1

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Advantages of all turns."""
        return group_relative(
            learnable_turns(groups, own_return), key=self.among, advantage=self._advantages
        )

    def _advantages(self, values: Floats) -> Floats:
        right = values > self.threshold
        count, wrong = len(values), int((~right).sum())
        if count <= self.k or wrong == count:
            return np.zeros_like(values)
        missed = comb(wrong, self.k) / comb(count, self.k)
        if missed == 0:  # every subset holds a right answer
            return np.zeros_like(values)
        without = comb(wrong - 1, self.k - 1) / comb(count - 1, self.k - 1)
        found = np.where(right, missed, missed - without)
        return found / np.sqrt(missed * (1 - missed)) if self.std else found
