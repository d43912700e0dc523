"""Tests of `scripts/poker_noise.py`: the exact gradient, and the estimates of two methods."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.scripts import script

pyspiel = pytest.importorskip("pyspiel")
script("poker_tree")
for name in ("bakeoff_learning", "enumerated_games", "enumerated_methods", "bakeoff_table"):
    script(name)
for name in ("tabular_bakeoff", "poker_bakeoff"):
    script(name)
poker: Any = script("poker_noise")


def chips(tree: Any, policy: np.ndarray) -> list[float]:
    """Return the expected chips of both seats, by OpenSpiel."""
    table = {
        name: [(move, float(policy[n, move])) for move in np.flatnonzero(tree.legal[n])]
        for name, n in tree.sets.items()
    }
    played = pyspiel.TabularPolicy(table)
    found: list[float] = pyspiel.expected_returns(
        tree.game.new_initial_state(), [played, played], -1, False
    )
    return found


@pytest.mark.parametrize(("game", "checked"), [("kuhn", 12), ("leduc", 40)])
def test_the_exact_gradient_is_that_of_the_expected_chips(game: str, checked: int) -> None:
    tree, step = poker.tree_of(game), 1e-5
    logits = np.random.default_rng(0).normal(size=tree.legal.shape)
    found = poker.exact(tree, tree.probabilities(logits))
    assert not found[~tree.legal].any()
    seat = {int(known): int(tree.player[node]) for node, known in enumerate(tree.set_of)}
    for known in np.random.default_rng(1).choice(len(logits), checked, replace=False):
        for move in np.flatnonzero(tree.legal[known]):
            ends = []
            for change in (step, -step):
                moved = logits.copy()
                moved[known, move] += change
                ends.append(chips(tree, tree.probabilities(moved))[seat[int(known)]])
            expected = (ends[0] - ends[1]) / (2 * step)
            assert found[known, move] == pytest.approx(expected, abs=1e-8)


def test_rloo_has_no_bias_and_a_batch_without_baseline_of_the_deal_is_noisier() -> None:
    policy = poker.policy_of("kuhn", "random", 0)
    own, batch = (poker.noise("kuhn", name, policy, 0, batches=150) for name in ("rloo", "trr"))
    assert abs(own["bias"]) < 0.05 and abs(batch["bias"]) < 0.05
    assert batch["noise"] > 1.2 * own["noise"] > 0


def test_a_trained_policy_is_less_exploitable_than_a_random_one() -> None:
    tree = poker.tree_of("kuhn")
    trained, drawn = (poker.policy_of("kuhn", kind, 0) for kind in ("trained", "random"))
    assert tree.exploitability(trained) < 0.2 < tree.exploitability(drawn)


def test_the_table_is_kept_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "noise.json"
    few = ["--games", "kuhn", "--policies", "random", "--methods", "grpo", "--seeds", "2"]
    poker.main([*few, "--batches", "20", "--json", str(kept)])
    shown = capsys.readouterr().out
    assert "kuhn, random policies" in shown and "| `rloo` |" in shown and "1.00 (1.00" in shown
    rows = json.loads(kept.read_text())
    assert [(row["credit"], row["seed"]) for row in rows] == [
        ("rloo", 0), ("rloo", 1), ("grpo", 0), ("grpo", 1)
    ]  # fmt: skip
    poker.main(["--json", str(kept), "--draw", str(tmp_path)])
    assert "grpo" in (tmp_path / "bakeoff_noise_kuhn_random.svg").read_text()
