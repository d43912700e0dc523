"""Tests of `scripts/exact_self_play.py`: values of moves, and learning from them."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arenas.games.kuhn import Kuhn
from selfplay.study.measures import exploitability
from tests.helpers.scripts import script

pyspiel = pytest.importorskip("pyspiel")
exact = script("exact_self_play")


def kuhn() -> tuple[Any, Any]:
    game, sets = exploitability.known_game(Kuhn())
    return exact.Tree(game, sets), sets


def first_player_pay(tree: Any, policy: np.ndarray) -> float:
    """Return the mean pay of the first player; `policy` need not sum to 1."""

    def pay(node: Any) -> float:
        if isinstance(node, float):
            return node
        if isinstance(node, list):
            return sum(p * pay(after) for p, after in node)
        _, number, moves = node
        return sum(policy[number, move] * pay(after) for move, after in moves.items())

    return float(pay(tree._root))


def test_the_values_of_moves_against_uniform_play() -> None:
    tree, sets = kuhn()
    values = tree.values(tree.legal / tree.legal.sum(1, keepdims=True))
    found = {
        each.key: {name: values[number, move] for name, move in each.actions.items()}
        for number, each in enumerate(sets)
    }
    # A king that is bet at wins two chips with a call and loses its own with a fold.
    facing = [moves for key, moves in found.items() if key == "2b"]
    assert [sorted(moves.values()) for moves in facing] == [[-1.0, 2.0]]
    # The first player's king: a bet wins 1 or 2, a pass wins 1 or, after a bet, -1 or 2.
    assert sorted(found["2"].values()) == pytest.approx([0.5 * 1 + 0.5 * 0.5, 1.5])


def test_the_values_are_the_derivatives_of_the_pay() -> None:
    tree, sets = kuhn()
    rng = np.random.default_rng(0)
    policy = rng.random(tree.legal.shape) * tree.legal
    policy /= policy.sum(1, keepdims=True)
    values, small = tree.values(policy), 1e-6
    for number, each in enumerate(sets):
        sign = 1 if each.agent.endswith("0") else -1
        slopes = []
        for move in range(2):
            step = np.zeros(policy.shape)
            step[number, move] = small
            pays = [first_player_pay(tree, policy + side * step) for side in (1, -1)]
            slopes.append(sign * (pays[0] - pays[1]) / (2 * small))
        # Values and slopes differ by one factor for the whole set: the probability to reach it.
        assert slopes[0] * values[number, 1] == pytest.approx(slopes[1] * values[number, 0])


def test_a_policy_learns_from_exact_values(tmp_path: Path) -> None:
    overrides = [
        "+experiment=tiny/kuhn",
        "evaluations=none",
        f"run.folder={tmp_path}",
        "run.name=exact",
        "run.steps=40",
        "run.checkpoint_every=40",
        "objective.estimator=exact",
        "objective.entropy={steps: [0, 40], values: [0.2, 0.02]}",
        "learner.betas=[0,0.99]",
    ]
    exact.train(overrides)
    before, after = (
        found.exploitability for found in exploitability.study(tmp_path / "exact", every=True)
    )
    assert before is not None and after is not None and after < 0.5 * before


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["run.name=x", "objective.estimator=k2"], "objective.estimator: k2 estimates"),
        (["run.name=x", "objective=grpo"], "set ratio=none"),
        (["run.name=x", "objective.kl=0", "arena=stag_hunt", "roles=matrix"], "who move"),
        ([], "run.name: the run needs a name"),
    ],
)
def test_settings_that_cannot_be_trained_are_refused_in_one_line(
    overrides: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["+experiment=tiny/kuhn", f"run.folder={tmp_path}", "evaluations=none", *overrides]
    monkeypatch.setattr(sys, "argv", ["exact_self_play.py", *given])
    with pytest.raises(SystemExit, match=words):
        exact.main()
    assert not list(tmp_path.iterdir())
