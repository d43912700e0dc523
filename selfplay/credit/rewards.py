"""Reward functions that the config of an arena names and weights."""

import re
from collections import Counter
from collections.abc import Sequence
from math import cos, exp, pi
from string import punctuation


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 for an empty sequence."""
    return sum(values) / len(values) if values else 0.0


def overlong(length: int, *, limit: int, buffer: int) -> float:
    """Return DAPO's soft penalty for answers near the limit (2503.14476), from 0 to -1.

    It is 0 up to limit - buffer tokens, then falls linearly to -1 at the limit and beyond.
    """
    if not 0 < buffer <= limit:
        raise ValueError(
            f"0 < buffer <= limit, not buffer {buffer}, limit {limit}; set shaping=none, or a "
            "larger sampling.default.max_tokens"
        )
    return -min(1.0, max(0.0, (length - (limit - buffer)) / buffer))


def cosine_length(length: int, *, limit: int, short: float, long: float) -> float:
    """Return a reward that goes from `short` at 0 tokens to `long` at the limit along half a
    cosine.

    With short > long for right answers and short < long for wrong ones, a policy is paid for longer
    thoughts only if its answers are not yet right (2502.03373).
    """
    if limit < 1:
        raise ValueError(f"limit is at least 1, not {limit}")
    share = min(max(length / limit, 0.0), 1.0)
    return long + 0.5 * (short - long) * (1 + cos(pi * share))


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", punctuation)


def normalized_answer(text: str) -> str:
    """Return the text in lower case without ASCII punctuation, articles and extra white space, as
    in SQuAD (1606.05250)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
    """Return 1 if both texts are equal after SQuAD's normalization, else 0."""
    return float(normalized_answer(answer) == normalized_answer(gold))


def token_f1(answer: str, gold: str) -> float:
    """Return SQuAD's F1: the harmonic mean of precision and recall of normalized words, with
    repeats.

    If one of the texts has no words, it is 1 if the other has none either, else 0.
    """
    said, wanted = normalized_answer(answer).split(), normalized_answer(gold).split()
    if not said or not wanted:
        return float(said == wanted)
    common = sum((Counter(said) & Counter(wanted)).values())
    return 2 * common / (len(said) + len(wanted))


def majority(votes: Sequence[str]) -> str | None:
    """Return the most frequent vote, the first of equally frequent ones; None without votes."""
    return Counter(votes).most_common(1)[0][0] if votes else None


def uncertainty(share: float) -> float:
    """Return the reward of R-Zero's challenger (2508.05004): 1 - 2 |p - 1/2|.

    It is largest if half of the answers agree. `share` p is the fraction of answers that agree with
    the majority, in [0, 1].
    """
    return 2 * minority(share)


def minority(share: float) -> float:
    """Return the reward of R-Zero's released code: min(p, 1 - p), half of `uncertainty`."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a share lies in [0, 1], not {share}")
    return min(share, 1 - share)


def success_variance(solve_rate: float, *, width: float = 0.1) -> float:
    """Return SPICE's reward of a challenger (2510.24684): exp(-(v - 1/4)^2 / (2 width^2)).

    v = s (1 - s) is the variance of right and wrong answers at the solve rate s in [0, 1]. It is at
    most 1/4, at s = 1/2, where the reward is 1. With the paper's width of 0.1 (a variance of 0.01)
    a question that all or none solve still earns exp(-3.125) = 0.04.
    """
    if not 0.0 <= solve_rate <= 1.0:
        raise ValueError(f"a solve rate lies in [0, 1], not {solve_rate}")
    if width <= 0:
        raise ValueError(f"width is positive, not {width}")
    return exp(-((solve_rate * (1 - solve_rate) - 0.25) ** 2) / (2 * width**2))
