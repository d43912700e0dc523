"""The vote of several samples of a task: the exact probability that a right answer wins.

Source: Wang et al. 2022, 2203.11171 (self-consistency). `selfplay study passk` reads it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class AnswerVotes:
    """Votes of a task's samples; samples without an answer are in neither list."""

    right: Sequence[int]
    """Number of samples of each right answer."""
    wrong: Sequence[int]
    """Number of samples of each wrong answer."""


def count_votes(answers: Sequence[tuple[str | None, bool]]) -> AnswerVotes | None:
    """Return the votes of a task's samples, given as (answer, right); "" is no answer.

    Return None if votes are not defined: an answer cannot be compared (None), one text is both
    right and wrong, or a sample is right without an answer.
    """
    right = Counter(text for text, good in answers if good)
    wrong = Counter(text for text, good in answers if not good)
    if None in right or None in wrong or "" in right or set(right) & set(wrong):
        return None
    return AnswerVotes(
        right=list(right.values()), wrong=[count for text, count in wrong.items() if text]
    )


def majority_at_k(voted: AnswerVotes, samples: int, k: int) -> float:
    """Return the probability that k samples, drawn without replacement, elect a right answer.

    The most frequent answer wins; a tie is broken at random. Samples without an answer are drawn
    but do not vote, and without votes no answer wins. The result is exact up to rounding: the
    counts of the answers among the k samples are independent binomials, conditioned on the sum k.
    NaN for k larger than the number of samples.
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
    """Return [T] probabilities that t other answers have `most` votes and none has more.

    `drawn` samples have these other answers or no answer.
    """
    found = np.zeros((drawn // most + 1, drawn + 1))
    # Answers that cannot reach `most` are merged, so many different wrong answers cost nothing.
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
    """Return the probability of `drawn` successes in `count` trials.

    `majority_at_k` is the same for any probability of success; k / (n + 1) avoids underflow.
    """
    if drawn > count:
        return 0.0
    n, k = of
    p = k / (n + 1)
    ways = math.lgamma(count + 1) - math.lgamma(drawn + 1) - math.lgamma(count - drawn + 1)
    return math.exp(ways + drawn * math.log(p) + (count - drawn) * math.log1p(-p))
