"""Tests of the reward functions."""

import pytest

from selfplay.credit.rewards import exact_match, majority, mean, token_f1


def test_the_mean_of_no_values_is_0() -> None:
    assert mean([]) == 0
    assert mean([1, 2, 6]) == 3


@pytest.mark.parametrize(
    ("answer", "gold", "match", "f1"),
    [
        ("The  Eiffel Tower!", "eiffel tower", 1.0, 1.0),
        ("Paris, France", "Paris", 0.0, 2 / 3),
        ("a b c d", "b b d x", 0.0, 4 / 7),  # "a" is an article; b and d are shared
        ("Theatre", "the atre", 0.0, 0.0),
        ("", "the", 1.0, 1.0),
        ("", "cat", 0.0, 0.0),
        ("U.S.", "us", 1.0, 1.0),
    ],
)
def test_answers_are_compared_as_squad_does(
    answer: str, gold: str, match: float, f1: float
) -> None:
    assert exact_match(answer, gold) == exact_match(gold, answer) == match
    assert token_f1(answer, gold) == pytest.approx(f1)
    assert token_f1(gold, answer) == pytest.approx(f1)


def test_the_majority_is_the_first_of_the_most_frequent() -> None:
    assert majority(["a", "b", "b", "c"]) == "b"
    assert majority(["c", "b", "b", "c", "a"]) == "c"
    assert majority([]) is None
