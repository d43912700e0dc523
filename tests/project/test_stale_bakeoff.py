"""Tests of the comparison on stale samples and of its game of words, with values by hand."""

from typing import Any

import numpy as np
import pytest
import torch

from selfplay.learner.objective import PolicyLoss
from selfplay.types import Sample
from tests.helpers.scripts import script

script("bakeoff_learning")
script("bakeoff_table")
words: Any = script("word_game")
stale: Any = script("stale_bakeoff")
GAME = stale.GAME
END = GAME.letters


def objective(name: str) -> PolicyLoss:
    return PolicyLoss(**stale.OBJECTIVES[name])


def batch(logits: torch.Tensor, rng: np.random.Generator) -> list[Sample]:
    """Return the samples of a step."""
    samples: list[Sample] = stale.as_samples(GAME.sampled(logits, stale.TASKS, rng))
    return samples


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
    assert GAME.reward(task, word) == pay


def test_all_words_are_listed_and_have_probability_1() -> None:
    leaves = words.Leaves(GAME)
    assert len(leaves.pay) == 4 * (1 + 3 + 9 + 27 + 81 + 243)
    logits = torch.randn(*GAME.shape, dtype=torch.float64)
    leaves.pay = torch.ones_like(leaves.pay)
    assert float(leaves.expected(logits)) == pytest.approx(1.0)


def test_words_without_an_end_are_cut_off() -> None:
    leaves = words.Leaves(GAME)
    assert len(leaves.cut) - int(leaves.cut.sum()) == 4 * (1 + 3 + 9 + 27 + 81)
    uniform = torch.zeros(*GAME.shape, dtype=torch.float64)
    assert float(leaves.chances(uniform) @ leaves.cut) == pytest.approx((3 / 4) ** 5)
    for turn in GAME.sampled(uniform, stale.TASKS, np.random.default_rng(0)):
        word = tuple(turn.completion_ids)
        assert (turn.stop_reason == "stop") == (word[-1] == END)
        assert turn.stop_reason == "stop" or len(word) == GAME.longest
        assert turn.reward == GAME.reward(turn.prompt_ids[0], word)


def test_the_return_of_a_uniform_policy_by_hand() -> None:
    """Task 0 pays 1 for a word of one letter, whose probability is 1/16, and 0.5 for longer words
    that begin with this letter, whose probability is 3/16."""
    leaves = words.Leaves(GAME)
    leaves.pay[len(leaves.pay) // 4 :] = 0.0
    uniform = torch.zeros(*GAME.shape, dtype=torch.float64)
    assert 4 * float(leaves.expected(uniform)) == pytest.approx(1 / 16 + 0.5 * 3 / 16)


def test_the_mean_estimate_without_a_lag_is_the_exact_gradient() -> None:
    """It is smaller by a factor, because a word's own reward is part of the mean of its group."""
    leaves, rng = words.Leaves(GAME), np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=GAME.shape))
    table = logits.clone().requires_grad_(True)
    leaves.expected(table).backward()
    assert table.grad is not None
    exact, found = table.grad, torch.zeros_like(logits)
    for _ in range(200):
        found += words.gradient(GAME, objective("magrpo"), logits, batch(logits, rng))[0] / 200
    part = float((found * exact).sum() / (exact * exact).sum())
    assert part == pytest.approx(1 - 1 / stale.GROUP, abs=0.08)


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "cispo"])
def test_ratios_are_bounded_on_stale_samples_only(name: str) -> None:
    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.normal(size=GAME.shape))
    samples = batch(logits, rng)
    assert words.gradient(GAME, objective(name), logits, samples)[1] == 0.0
    moved = logits + 2 * torch.from_numpy(rng.normal(size=logits.shape))
    assert words.gradient(GAME, objective(name), moved, samples)[1] > 0.0


def test_a_run_is_repeated_exactly_and_a_lag_changes_it() -> None:
    def values(lag: int) -> Any:
        run = {"lag": lag, "steps": 4, "rate": 0.3}
        return stale.learn(objective("grpo"), words.Leaves(GAME), 0, **run)[0]

    assert values(0) == values(0)
    assert values(0)[:2] == values(2)[:2] and values(0) != values(2)
