"""Tests of `scripts/leduc_table.py`: the tree of Leduc poker, and learning with its rule."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.helpers.scripts import script

pyspiel = pytest.importorskip("pyspiel")
poker = script("poker_tree")
leduc = script("leduc_table")


@cache
def tree() -> Any:
    return poker.PokerTree("leduc")


def rule(**settings: float) -> Any:
    known = {"hands": 8, "steps": 80, "kl": 2.0, "ema": 0.01, "entropy": 0.0, "lr": 0.1}
    known["last_entropy"] = settings.get("entropy", 0.0)
    return leduc.Rule(**{**known, **settings})


def test_the_tree_is_leduc_poker() -> None:
    game = pyspiel.load_game("leduc_poker(suit_isomorphism=true)")
    made, uniform = tree(), tree().probabilities(np.zeros((288, 3)))
    assert made.legal.shape == (288, 3) and len(made.deals) == 120
    exact = pyspiel.exploitability(game, pyspiel.UniformRandomPolicy(game))
    assert made.exploitability(uniform) == pytest.approx(exact, abs=1e-9)
    hands = 400
    sets, moves, better = leduc.play(made, uniform, hands, np.random.default_rng(0))
    assert made.legal[sets, moves].all()
    first = better[: 120 * hands]  # the first turn of each hand: the first player's
    assert np.abs(first.reshape(120, hands).mean(1)).max() < 1e-9
    raised = moves[: 120 * hands] == 2
    assert raised.mean() == pytest.approx(0.5, abs=0.02)  # call and raise are legal there


def test_the_rule_learns_and_a_large_entropy_bonus_keeps_it_uniform() -> None:
    uniform = tree().exploitability(tree().probabilities(np.zeros((288, 3))))
    found, of_mean = leduc.train(tree(), rule(), seed=0)
    assert len(found) == leduc.CHECKS and found[-1] < 0.5 * uniform > of_mean
    again, _ = leduc.train(tree(), rule(), seed=0)
    assert again == found
    kept, _ = leduc.train(tree(), rule(entropy=100.0), seed=0)
    assert kept[-1] == pytest.approx(uniform, abs=0.3)
    rising, _ = leduc.train(tree(), rule(last_entropy=100.0), seed=0)
    assert rising[-1] == pytest.approx(uniform, abs=0.3)


@pytest.mark.parametrize(("steps", "checks"), [(3, 3), (13, 8)])
def test_the_last_step_is_measured_for_any_number_of_steps(steps: int, checks: int) -> None:
    found, of_mean = leduc.train(tree(), rule(hands=1, steps=steps), seed=0)
    assert len(found) == checks
    table = poker.PokerTable(tree(), ema=0.01)
    rng = np.random.default_rng(0)
    values, kept = [], []
    for step in range(1, steps + 1):
        turns = leduc.play(tree(), tree().probabilities(table.logits), 1, rng)
        lr = leduc.falling(0.1, leduc.FLOOR * 0.1, step=step, steps=steps)
        table.learn(*turns, count=120, kl=2.0, entropy=0.0, lr=lr)
        values.append(tree().exploitability(tree().probabilities(table.logits)))
        kept.append(table.logits)
    assert found[-1] == values[-1]
    if steps == checks:  # every step is measured; the mean is over the last two of three
        assert of_mean == tree().exploitability(tree().probabilities(np.mean(kept[1:], axis=0)))
