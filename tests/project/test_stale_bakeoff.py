"""The game of words of the comparison on stale samples, beside values that follow by hand."""

from typing import Any

import numpy as np
import pytest
import torch

from selfplay.learner.objective import PolicyLoss
from tests.helpers.scripts import script

script("bakeoff_learning")
script("bakeoff_table")
stale: Any = script("stale_bakeoff")
END = stale.LETTERS


def objective(name: str) -> PolicyLoss:
    return PolicyLoss(**stale.OBJECTIVES[name])


@pytest.mark.parametrize(
    ("task", "word", "pay"),
    [
        (1, (2, 0, END), 1.0),
        (1, (2, 0, 0, END), 0.5),  # both letters are right, and one is too many
        (1, (2, END), 0.25),
        (1, (END,), 0.0),
        (3, (1, 0, 2, 2, 1), 0.5),  # never ended
    ],
)
def test_pay(task: int, word: tuple[int, ...], pay: float) -> None:
    assert stale.reward(task, word) == pay


def test_all_words_are_listed_and_have_probability_1() -> None:
    leaves = stale.Leaves()
    assert len(leaves.pay) == 4 * (1 + 3 + 9 + 27 + 81 + 243)
    logits = torch.randn(4 * stale.NODES, END + 1, dtype=torch.float64)
    leaves.pay = torch.ones_like(leaves.pay)
    assert float(leaves.expected(logits)) == pytest.approx(1.0)


def test_a_uniform_policy_earns_what_follows_by_hand() -> None:
    """Task 0, the word of one letter: 1/4 x 1/4 for it, and half for each longer word that begins
    with the letter."""
    leaves = stale.Leaves()
    leaves.pay[len(leaves.pay) // 4 :] = 0.0
    uniform = torch.zeros(4 * stale.NODES, END + 1, dtype=torch.float64)
    assert 4 * float(leaves.expected(uniform)) == pytest.approx(1 / 16 + 0.5 * 3 / 16)


def test_the_mean_estimate_without_a_lag_is_the_exact_gradient() -> None:
    """Less the part of a word's own reward in the mean of its group."""
    leaves, rng = stale.Leaves(), np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(4 * stale.NODES, END + 1)))
    table = logits.clone().requires_grad_(True)
    leaves.expected(table).backward()
    assert table.grad is not None
    exact, found = table.grad, torch.zeros_like(logits)
    for _ in range(200):
        found += stale.gradient(objective("magrpo"), logits, stale.sampled(logits, rng))[0] / 200
    part = float((found * exact).sum() / (exact * exact).sum())
    assert part == pytest.approx(1 - 1 / stale.GROUP, abs=0.08)


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "cispo"])
def test_ratios_are_bounded_on_stale_samples_only(name: str) -> None:
    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.normal(size=(4 * stale.NODES, END + 1)))
    words = stale.sampled(logits, rng)
    assert stale.gradient(objective(name), logits, words)[1] == 0.0
    moved = logits + 2 * torch.from_numpy(rng.normal(size=logits.shape))
    assert stale.gradient(objective(name), moved, words)[1] > 0.0


def test_a_run_is_repeated_exactly_and_a_lag_changes_it() -> None:
    def values(lag: int) -> Any:
        run = {"lag": lag, "steps": 4, "rate": 0.3}
        return stale.learn(objective("grpo"), stale.Leaves(), 0, **run)[0]

    assert values(0) == values(0)
    assert values(0)[:2] == values(2)[:2] and values(0) != values(2)
