"""The majority vote of k samples, compared with enumeration."""

from collections import Counter
from fractions import Fraction
from itertools import combinations
from math import comb, isnan
from random import Random

import pytest

from selfplay.study.stats.majority_vote import AnswerVotes, count_votes, majority_at_k


def enumerated(samples: list[tuple[str, bool]], k: int) -> Fraction:
    """Return the mean over subsets of k of the fraction of the most given answers that is right."""
    right, total = {text for text, good in samples if good}, Fraction(0)
    for drawn in combinations(samples, k):
        given = Counter(text for text, _ in drawn if text)
        top = [text for text in given if given[text] == max(given.values())]
        total += Fraction(sum(text in right for text in top), len(top)) if top else 0
    return total / comb(len(samples), k)


def test_majority_is_the_mean_over_all_subsets() -> None:
    aabbc = AnswerVotes(right=[2], wrong=[2, 1])
    assert majority_at_k(aabbc, 5, 3) == pytest.approx(13 / 30)
    assert isnan(majority_at_k(aabbc, 5, 6))
    rng = Random(0)
    for _ in range(60):
        samples = [(rng.choice(["", *"abcd"]), False) for _ in range(rng.randint(1, 8))]
        samples = [
            (text, text in ("a", "b")) for text, _ in samples
        ]  # a and b are right, and "" is no answer
        voted = count_votes(samples)
        assert voted is not None
        for k in range(1, len(samples) + 1):
            found = majority_at_k(voted, len(samples), k)
            assert found == pytest.approx(float(enumerated(samples, k)), abs=1e-12)


def test_majority_is_unbiased() -> None:
    """The mean over the multinomial of 7 samples is the vote of k independent samples.

    The right one of three answers has 0.4, and can win with less than half of the votes.
    """
    wanted = {1: 0.4, 2: 0.4, 3: 0.424, 5: 0.44704, 7: 0.471232}
    for k, truth in wanted.items():
        mean = 0.0
        for a in range(8):
            for b in range(8 - a):
                c = 7 - a - b
                chance = comb(7, a) * comb(7 - a, b) * 0.4**a * 0.3 ** (b + c)
                voted = AnswerVotes(right=[a] if a else [], wrong=[n for n in (b, c) if n])
                mean += chance * majority_at_k(voted, 7, k)
        assert mean == pytest.approx(truth, abs=1e-12)


def test_the_vote_of_many_samples_does_not_overflow() -> None:
    assert majority_at_k(AnswerVotes(right=[300], wrong=[300]), 600, 599) == pytest.approx(0.5)
    assert majority_at_k(AnswerVotes(right=[1500], wrong=[900]), 2400, 1) == pytest.approx(0.625)


def test_samples_without_an_answer_have_no_vote() -> None:
    silent = AnswerVotes(right=[1], wrong=[])
    assert majority_at_k(silent, 4, 1) == pytest.approx(0.25)  # without votes no answer wins
    assert majority_at_k(silent, 4, 4) == pytest.approx(1)  # the other three do not vote


def test_answers_without_a_defined_vote_are_not_counted() -> None:
    assert count_votes([("a", True), ("a", False)]) is None  # right and wrong at once
    assert count_votes([("", True), ("a", False)]) is None  # right without an answer
    assert count_votes([(None, True), (None, False)]) is None
    assert count_votes([("", False)]) == AnswerVotes(right=[], wrong=[])
