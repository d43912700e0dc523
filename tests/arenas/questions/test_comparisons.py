"""Tests of questions about the order of three numbers."""

from collections import Counter

import pytest

from arenas.questions.comparisons import KINDS, comparisons, is_held_out


def test_answers_are_right_and_splits_share_no_numbers() -> None:
    train = comparisons(count=400, seed=3)
    held_out = comparisons(count=200, split="held_out", seed=3)
    assert train == comparisons(count=400, seed=3) != comparisons(count=400, seed=4)
    assert len({task.id for task in train}) == 400
    for task in [*train, *held_out]:
        numbers = [int(number) for number in task.payload["numbers"]]
        assert len(set(numbers)) == 3 and min(numbers) >= 10 and max(numbers) <= 99
        right = {"largest": max(numbers), "smallest": min(numbers), "middle": sorted(numbers)[1]}
        assert task.payload["answer"] == str(right[task.type])
        assert task.payload["question"] == KINDS[task.type].format(*numbers)
        assert is_held_out(numbers) == is_held_out(numbers[::-1]) == (task in held_out)
    assert min(Counter(task.type for task in train).values()) > 90


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="kinds: some of"):
        comparisons(count=5, kinds=["longest"])
    with pytest.raises(ValueError, match="at least 9 more"):
        comparisons(count=5, smallest=5, largest=9)
    for count in (0, 10**6):
        with pytest.raises(ValueError, match="between 1 and"):
            comparisons(count=count)
