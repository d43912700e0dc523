"""Pass@k: an answer is judged by what it adds to the probability that one of k answers is right."""

from collections.abc import Callable, Sequence
from math import comb

import numpy as np

from selfplay.credit.base import (
    FloatVector,
    GroupBy,
    GroupRelative,
    group_advantages,
    group_relative,
    learnable_turns,
    own_return,
)
from selfplay.credit.replay import WithRoles
from selfplay.types import Group, Sample


class PassAtK(GroupRelative):
    """A_right = (1 - rho) / sigma, A_wrong = (1 - rho - C(W-1, k-1) / C(N-1, k-1)) / sigma.

    rho = 1 - C(W, k) / C(N, k) is the fraction of k-subsets of N answers, W of them wrong, that
    contain a right answer, and sigma = sqrt(rho (1 - rho)) is its standard deviation (2508.10751).
    The advantages of a group add up to zero.

    Without the division (`std=False`) the expected gradient is (N-k)/(N k) times the gradient of
    pass@k itself, 1 - (1 - p)^k, because rho contains each answer's own subsets. This holds if the
    agent answers in all N siblings. If it has no turn in some of them, the siblings in which it has
    one are compared: their number is then N, which varies between groups. With the division it is
    biased as in GRPO. Failure mode: groups with fewer than k wrong answers have no signal, so tasks
    that are mostly solved do not improve; groups of at most k answers have none either.
    """

    def __init__(
        self,
        *,
        k: int = 4,
        threshold: float = 0.0,
        group_by: GroupBy = "role",
        std: bool = True,
        arena: Callable[[], WithRoles] | None = None,
    ) -> None:
        """Args:
        k: Number of answers of pass@k.
        threshold: An answer is right if its agent's return is above this value.
        group_by: Key of the comparison, see `base.group_key`.
        std: True divides by sigma.
        arena: Makes the arena, whose numbers of agents per role decide `min_group_size`.
        """
        super().__init__(group_by=group_by)
        if k < 1:
            raise ValueError(f"k is at least 1, not {k}")
        self.k, self.threshold, self.std = k, threshold, std
        seats = max(arena().roles.values(), default=1) if arena else k + 1
        self.seats = 1 if group_by == "agent" else seats
        self.signal_needs = (
            f"PassAtK has a signal only among more than k={k} answers that are compared, with a "
            f"return above {threshold:g} in one and not above it in at least {k}"
        )

    @property
    def min_group_size(self) -> int:
        """Number of siblings with more than k answers; without `arena` 1, or k + 1 if by agent."""
        return self.k // self.seats + 1

    def has_signal(self, group: Group) -> bool:
        """Return True if the advantages of the group are not all 0."""
        turns = learnable_turns([group], own_return)
        return any(group_advantages(turns, key=self.among, advantage=self._advantages))

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns."""
        return group_relative(
            learnable_turns(groups, own_return), key=self.among, advantage=self._advantages
        )

    def _advantages(self, values: FloatVector) -> FloatVector:
        right = values > self.threshold
        count, wrong = len(values), int((~right).sum())
        if count <= self.k or wrong == count:
            return np.zeros_like(values)
        missed = comb(wrong, self.k) / comb(count, self.k)
        if missed == 0:  # every subset contains a right answer
            return np.zeros_like(values)
        without = comb(wrong - 1, self.k - 1) / comb(count - 1, self.k - 1)
        advantages = np.where(right, missed, missed - without)
        return advantages / np.sqrt(missed * (1 - missed)) if self.std else advantages
