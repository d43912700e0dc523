"""Rewards as pure functions."""

import math

import pytest

from selfplay.rewards import composite, exact_match, learnability, majority, mean, token_f1


def test_a_proposer_earns_what_is_still_unsolved() -> None:
    found = [learnability(solved / 8) for solved in range(9)]
    assert found == [0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0]


def test_the_released_code_charges_for_tasks_that_teach_nothing() -> None:
    assert [learnability(rate, degenerate=-0.5) for rate in (0, 0.5, 1)] == [-0.5, 0.5, -0.5]


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan, math.inf])
def test_a_solve_rate_lies_between_none_and_all(rate: float) -> None:
    with pytest.raises(ValueError, match="solve rate"):
        learnability(rate)


def test_the_composite_reward() -> None:
    assert composite(1.0) == 1.0
    assert composite(0.3) == 0.3
    assert composite(0.0) == -0.5
    assert composite(None) == -1.0
    assert composite(0.0, wrong=-0.1) == -0.1
    assert composite(None, malformed=-2.0) == -2.0


def test_the_mean_of_nothing_is_nothing() -> None:
    assert mean([]) == 0
    assert mean([1, 2, 6]) == 3


@pytest.mark.parametrize(
    ("answer", "gold", "match", "f1"),
    [
        ("The  Eiffel Tower!", "eiffel tower", 1.0, 1.0),
        ("Paris, France", "Paris", 0.0, 2 / 3),
        ("a b c d", "b b d x", 0.0, 4 / 7),  # "a" is an article; shared are b and d
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
