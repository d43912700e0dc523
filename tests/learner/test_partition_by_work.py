"""Tests of partition_by_work: each sample is in one part, siblings are in the same part."""

from hypothesis import given
from hypothesis import strategies as st

from selfplay.learner.fsdp import partition_by_work
from tests.helpers.builders import sample

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=12), st.integers(1, 5), st.booleans())
def test_every_sample_is_in_one_part(
    texts: list[tuple[list[int], list[int]]], count: int, packed: bool
) -> None:
    found = partition_by_work([sample(p, c, 1.0) for p, c in texts], count, packed=packed)
    assert len(found) == count
    assert sorted(index for part in found for index in part) == list(range(len(texts)))


def test_one_part_keeps_the_order() -> None:
    samples = [sample([9 - n], [1], 1.0) for n in range(4)]
    assert partition_by_work(samples, 1, packed=True) == [[0, 1, 2, 3]]


def test_siblings_stay_together_and_parts_have_equal_work() -> None:
    """Check four groups of four in alternating order; a prefix that siblings part counts once."""
    groups = {number: [20 + number] * 30 for number in range(4)}
    samples = [
        sample([*groups[number], place], [1, 2, 3], 1.0) for place in range(4) for number in groups
    ]
    found = partition_by_work(samples, 2, packed=True)
    assert [{index % 4 for index in part} for part in found] == [{0, 1}, {2, 3}]
    long = sample(list(range(40)), [1, 2], 1.0)
    short = [sample([50 + n] * 10, [1, 2], 1.0) for n in range(4)]
    assert partition_by_work([*short, long], 2, packed=False) == [[4], [0, 1, 2, 3]]


def test_there_may_be_fewer_samples_than_parts() -> None:
    found = partition_by_work([sample([1], [2], 1.0)], 3, packed=True)
    assert sorted(map(len, found)) == [0, 0, 1]
    assert partition_by_work([], 3, packed=True) == [[], [], []]
