"""Tests of the cheapest cuts of samples into rows, against all cuts."""

from itertools import combinations, pairwise
from random import Random

import numpy as np
import pytest

from selfplay.learner.batch import STEM
from selfplay.learner.cheapest_cuts import RowCost, cheapest
from selfplay.learner.packing import Packer
from selfplay.types import Sample
from tests.helpers.builders import sample
from tests.helpers.shared_prefixes import apart, gradient, words


def row_cost(
    lengths: list[int], shared: list[int], passes: bool, attention: float, branching: float
) -> tuple[int, float, float]:
    """Return width, mask elements and cost of one row, sample by sample."""
    width = stem = lengths[0]
    for length, joins in zip(lengths[1:], shared[1:], strict=True):
        if joins == stem == width:
            stem = length
        width += length - joins
    if stem == width:
        return width, 0, width + attention * width * width / 2
    before = stem if passes and stem >= STEM else 0
    mask = (width - before) * width
    return width, mask, (width + attention * (before * before / 2 + mask)) * branching


def of_all_cuts(
    lengths: list[int], shared: list[int], passes: list[bool], *, limit: int, mask: int, a: float
) -> float:
    count, best = len(lengths), float("inf")
    for number in range(count):
        for inner in combinations(range(1, count), number):
            edges = [0, *inner, count]
            total = 0.0
            for start, end in pairwise(edges):
                width, elements, cost = row_cost(
                    lengths[start:end], shared[start:end], passes[start], a, 1.2
                )
                possible = all(shared[start + 1 : end]) and width <= limit and elements <= mask
                total += cost if possible or end == start + 1 else float("inf")
            best = min(best, total)
    return best


@pytest.mark.parametrize("seed", range(40))
def test_no_other_cut_is_cheaper(seed: int) -> None:
    rng = Random(seed)
    count = rng.randrange(1, 9)
    lengths, shared = [rng.randrange(5, 300)], [0]
    for _ in range(count - 1):
        joins = rng.choice([0, lengths[-1], rng.randrange(lengths[-1]), lengths[-1] // 2])
        shared.append(joins)
        lengths.append(joins + rng.randrange(1, 200))
    passes = [rng.random() < 0.7] * count
    limit, mask = rng.choice([200, 10_000]), rng.choice([20_000, 10**9])
    a = rng.choice([0.0, 0.001, 0.02])
    cost = RowCost(attention=a, branching=1.2)
    starts, found = cheapest(lengths, shared, passes, cost, max_tokens=limit, max_mask=mask)
    assert found == pytest.approx(
        of_all_cuts(lengths, shared, passes, limit=limit, mask=mask, a=a), rel=1e-12
    )
    ends = [*starts[1:], count]
    parts = [
        row_cost(lengths[i:j], [0, *shared[i + 1 : j]], passes[i], a, 1.2)[2]
        for i, j in zip(starts, ends, strict=True)
    ]
    assert starts[0] == 0 and sum(parts) == pytest.approx(found, rel=1e-12)


def questions(count: int) -> list[Sample]:
    """Return four answers to each question; all questions begin with the same instruction."""
    rng = Random(5)
    instruction = words(rng, 10)
    prompts = [[*instruction, *words(rng, 30)] for _ in range(count)]
    return [sample(prompt, words(rng, 6), rng.gauss(0, 1)) for prompt in prompts for _ in range(4)]


def test_many_questions_with_one_instruction_are_a_row_each() -> None:
    """Check that rows are cut: one row saves computing the instruction, but its mask costs more."""
    given = questions(40)
    one = Packer(packing="trie").rows(given, max_tokens=100_000)
    many = Packer(packing="auto", attention=0.001).rows(given, max_tokens=100_000)
    assert len(one) == 1 and 4 < len(many) <= 40
    assert sorted(id(span.sample) for row in many for span in row.spans) == sorted(map(id, given))
    for row in many:  # the answers to a question stay together
        assert len(row.spans) % 4 == 0
    few = Packer(packing="auto", attention=1e-5).rows(given, max_tokens=100_000)
    assert len(few) == 1


def test_rows_that_are_cut_again_have_the_gradient_of_plain_rows() -> None:
    given = questions(20)
    rows, plain = gradient(given, "rows")
    packed, found = gradient(given, "auto")
    assert apart(packed, rows) < 1e-6
    assert 20 * (30 + 4 * 5) < found["computed_tokens"] < plain["computed_tokens"]


def test_a_row_without_branches_has_no_factor() -> None:
    cost = RowCost(attention=0.5, branching=2.0)
    width, stem = np.array([4, 4]), np.array([4, 3])
    assert cost(width, stem, np.array([True, True])).tolist() == [4 + 0.5 * 8, 2 * (4 + 0.5 * 16)]
