"""The vote of k samples: how often most of them are right, counted over all subsets of k."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Ballots:
    """What the samples of a task answered. Those that held no answer are in neither list."""

    right: Sequence[int]
    """How many samples gave each right answer."""
    wrong: Sequence[int]
    """The same of wrong ones."""


def ballots(answers: Sequence[tuple[str | None, bool]]) -> Ballots | None:
    """The votes of a task's samples, (answer, right) each; "" is no answer.

    None where votes are no figure: an answer that cannot be compared (None), or rightness that is
    not of the answer: one text both right and wrong, or right without an answer.
    """
    right = Counter(text for text, good in answers if good)
    wrong = Counter(text for text, good in answers if not good)
    if None in right or None in wrong or "" in right or set(right) & set(wrong):
        return None
    return Ballots(
        right=list(right.values()), wrong=[count for text, count in wrong.items() if text]
    )


def majority_at_k(voted: Ballots, samples: int, k: int) -> float:
    """The chance that k of the samples, drawn without replacement, elect a right answer.

    The answer of the most wins, of several with equally many one at random. Samples without an
    answer are drawn but do not vote; nobody wins where none votes. Exact up to rounding: counts
    of the answers among k drawn are independent binomials, given that they add up to k. NaN for k
    beyond the samples.
    """
    if not 1 <= k <= samples:
        return math.nan
    silent = samples - sum(voted.right) - sum(voted.wrong)
    found = 0.0
    for mine, alike in Counter(voted.right).items():
        others = [*voted.right, *voted.wrong]
        others.remove(mine)
        for most in range(1, min(mine, k) + 1):
            tied = _tied(others, silent, most, k - most, (samples, k))
            shares = tied / np.arange(1, len(tied) + 1)
            found += alike * _chance(mine, most, (samples, k)) * float(shares.sum())
    return found / _chance(samples, k, (samples, k))


def _tied(
    others: Sequence[int], silent: int, most: int, drawn: int, of: tuple[int, int]
) -> np.ndarray:
    """[T] the chance that t other answers have `most` votes and none has more, where `drawn`
    samples are theirs or silent."""
    found = np.zeros((drawn // most + 1, drawn + 1))
    # Those that cannot have as many are one crowd: so many different wrong answers cost nothing.
    crowd = silent + sum(count for count in others if count < most)
    found[0] = [_chance(crowd, x, of) for x in range(drawn + 1)]
    for count in filter(most.__le__, others):
        after = np.zeros_like(found)
        for x in range(min(count, most, drawn) + 1):
            before = _chance(count, x, of) * found[:, : drawn + 1 - x]
            if x < most:
                after[:, x:] += before
            else:
                after[1:, x:] += before[:-1]
        found = after
    last: np.ndarray = found[:, drawn]
    return last


def _chance(count: int, drawn: int, of: tuple[int, int]) -> float:
    """Of `drawn` successes in `count` trials. Any chance of a success would do; near k of n the
    sums stay far from the smallest numbers there are."""
    if drawn > count:
        return 0.0
    n, k = of
    p = k / (n + 1)
    ways = math.lgamma(count + 1) - math.lgamma(drawn + 1) - math.lgamma(count - drawn + 1)
    return math.exp(ways + drawn * math.log(p) + (count - drawn) * math.log1p(-p))
