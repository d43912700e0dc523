"""Cuts of sorted samples into rows, the cheapest by estimate of all possible ones.

A token under a mask attends to all columns of its row. With many columns, attention costs more than
the tokens that another row would compute again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selfplay.learner.batch import STEM


@dataclass(frozen=True, kw_only=True)
class RowCost:
    """Estimates the cost of a row; the unit is the cost of one token without attention.

    `packing.Packer` makes it.
    """

    attention: float
    """Cost for a token of attending to one other token, as a fraction of a token's cost without
    attention."""
    causal: float = 1.0
    """Cost of attending to one token without a mask, as a fraction of `attention`."""
    branching: float
    """Factor of the cost of a row with branches, for its mask and for reading its samples."""

    def __call__(
        self, width: NDArray[np.int64], stem: NDArray[np.int64], stem_apart: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Return [N] costs.

        Args:
            width: [N] tokens of each row.
            stem: [N] leading tokens that each see all tokens before them.
            stem_apart: [N] True if the row's stem may be a pass of its own.
        """
        goes_on = stem == width
        before = np.where(goes_on | (stem_apart & (stem >= STEM)), stem, 0)
        pairs = self.causal * before * before / 2 + (width - before) * width
        return (width + self.attention * pairs) * np.where(goes_on, 1.0, self.branching)


def cheapest(
    lengths: Sequence[int],
    shared: Sequence[int],
    stem_apart: Sequence[bool],
    cost: RowCost,
    *,
    max_tokens: int,
    max_mask: float,
) -> tuple[list[int], float]:
    """Return the index of the first sample of each row of the cheapest cuts, and their total cost.

    This is dynamic programming over the S samples: the cheapest cuts of the first n samples end
    with some row, and cut the samples before that row in the cheapest way.

    Args:
        lengths: [S] tokens of each sample, in sorted order.
        shared: [S] leading tokens that each sample shares with the sample before it.
        stem_apart: [S] True if the stem of a row that begins with the sample may be a pass of its
            own.
        cost: Estimate of a row's cost.
        max_tokens: Largest number of tokens of a row of several samples.
        max_mask: Largest number of mask elements of a row of several samples.
    """
    count = len(lengths)
    length, joins, free = np.asarray(lengths), np.asarray(shared), np.asarray(stem_apart)
    tokens = np.concatenate([[0], np.cumsum(length - joins)])
    # The samples from k to run[k] - 1 each begin with the whole sample before them.
    run = np.arange(1, count + 1)
    for k in range(count - 2, -1, -1):
        if joins[k + 1] == length[k]:
            run[k] = run[k + 1]
    best, first = np.zeros(count + 1), np.zeros(count + 1, dtype=np.int64)
    earliest = 0
    for end in range(1, count + 1):
        if not joins[end - 1]:
            earliest = end - 1
        starts = np.arange(earliest, end)
        width = length[starts] + tokens[end] - tokens[starts + 1]
        stem = length[np.minimum(run[starts], end) - 1]
        before = np.where(free[starts] & (stem >= STEM), stem, 0)
        masked = np.where(stem == width, 0, (width - before) * width)
        fits = (width <= max_tokens) & (masked <= max_mask)
        fits[-1] = True  # a row of one sample is always possible
        total = np.where(fits, best[starts] + cost(width, stem, free[starts]), np.inf)
        chosen = int(total.argmin())
        best[end], first[end] = total[chosen], starts[chosen]
        # One more sample never makes a row shorter.
        earliest = min(earliest + int((width > max_tokens).sum()), end - 1)
    rows, end = [], count
    while end:
        end = int(first[end])
        rows.append(end)
    return rows[::-1], float(best[count])
