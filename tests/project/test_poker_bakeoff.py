"""Tests of `scripts/poker_bakeoff.py`: its hands and rewards, and learning with its methods."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.scripts import script

pytest.importorskip("pyspiel")
poker: Any = script("poker_tree")
for name in ("enumerated_games", "enumerated_methods", "bakeoff_table"):
    script(name)
bakeoff: Any = script("poker_bakeoff")


def dealer(game: str, seed: int = 0) -> Any:
    return bakeoff.Dealer(bakeoff.tree_of(game), np.random.default_rng(seed))


def uniform(game: str) -> Any:
    tree = bakeoff.tree_of(game)
    return tree.probabilities(np.zeros(tree.legal.shape))


def test_the_tree_of_kuhn_poker_has_the_known_values() -> None:
    tree = bakeoff.tree_of("kuhn")
    assert tree.legal.shape == (12, 2) and len(tree.deals) == 6
    # The known exploitability of uniform play: 11/24 chips a hand, the mean of both seats.
    assert tree.exploitability(uniform("kuhn")) == pytest.approx(11 / 24)


@pytest.mark.parametrize("game", ["kuhn", "leduc"])
def test_hands_are_zero_sum_paid_at_the_end_and_legal(game: str) -> None:
    player, tree = dealer(game), bakeoff.tree_of(game)
    sampler = bakeoff.Independent(group_size=8)
    groups = player.sample(uniform(game), sampler, least=400, step=1)
    hands = [hand for group in groups for hand in group.episodes]
    assert len({group.id for group in groups}) == len(groups)
    assert 400 <= player.completions == sum(len(hand.turns) for hand in hands) < 480
    for hand in hands:
        paid = {turn.agent: 0.0 for turn in hand.turns}
        last = {turn.agent: turn for turn in hand.turns}
        for turn in hand.turns:
            assert tree.legal[turn.prompt_ids[0], turn.completion_ids[0]]
            paid[turn.agent] += turn.reward
            assert turn.reward == 0.0 or turn is last[turn.agent]
        assert sum(paid.values()) == 0.0
        assert game == "leduc" or paid["first_0"] != 0.0  # Kuhn poker has no ties
        assert [turn.stage for turn in hand.turns] == list(range(len(hand.turns)))


def test_each_deal_is_played_equally_often() -> None:
    player = dealer("kuhn")
    groups: list[Any] = []
    while len(groups) < 60:
        groups += player.sample(uniform("kuhn"), bakeoff.Independent(group_size=8), least=1, step=1)
    deals = [group.episodes[0].task.id for group in groups[:60]]
    assert sorted(deals) == sorted([str(n) for n in range(6)] * 10)


def test_a_branch_goes_on_from_its_prefix_and_costs_only_new_turns() -> None:
    player = dealer("leduc")
    groups = player.sample(
        uniform("leduc"), bakeoff.Branch(group_size=8, initial=4), least=300, step=1
    )
    new = 0
    for group in groups:
        for hand in group.episodes:
            new += len(hand.turns) - hand.shared_turns
            if hand.branch_of is not None:
                parent, shared = group.episodes[hand.branch_of], hand.shared_turns
                moves = [(t.prompt_ids, t.completion_ids) for t in hand.turns[:shared]]
                known = [(t.prompt_ids, t.completion_ids) for t in parent.turns[:shared]]
                assert shared and moves == known
    assert new == player.completions
    assert any(hand.branch_of is not None for group in groups for hand in group.episodes)


@pytest.mark.parametrize("method", bakeoff.METHODS)
def test_every_method_approaches_equilibrium_in_kuhn_poker(method: str) -> None:
    setting = bakeoff.Setting(lr=0.1, kl=1.0)
    found = bakeoff.learn("kuhn", method, setting, seed=0, steps=60)
    assert len(found) == bakeoff.CHECKS and found[-1] < 0.35 < 11 / 24
    if method in ("rloo", "agent_turn, tree"):
        assert bakeoff.learn("kuhn", method, setting, seed=0, steps=60) == found


def test_the_tuning_takes_the_best_setting_and_gains_are_paired() -> None:
    settings = [bakeoff.Setting(lr=lr, kl=0.3) for lr in (1e-6, 0.1)]
    assert bakeoff.tuned("kuhn", "rloo", settings, steps=20) == settings[1]
    rows = [
        {"game": "kuhn", "credit": name, "seed": seed, "values": [value]}
        for name, values in {"rloo": (0.5, 0.3), "grpo": (0.2, 0.4)}.items()
        for seed, value in enumerate(values)
    ]
    assert bakeoff.gains(rows, "kuhn", "grpo") == pytest.approx([0.3, -0.1])
    assert bakeoff.gains(rows[::-1], "kuhn", "rloo", base="grpo") == pytest.approx([0.1, -0.3])


def test_gains_over_another_method_are_read_from_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"game": "kuhn", "credit": name, "seed": seed, "values": [value, 0.5 * value]}
        for name, values in {"rloo": (0.4, 0.4), "grpo": (0.2, 0.4)}.items()
        for seed, value in enumerate(values)
    ]
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(rows))
    bakeoff.main(["--json", str(kept), "--base", "grpo"])
    *_, first, second = capsys.readouterr().out.splitlines()
    # Means are 3/4 of the first value: the differences are -0.15 and 0; final: -0.1 and 0.
    assert first == "| `rloo` | -0.075 (-1.028 to 0.878) | -0.050 (-0.685 to 0.585) |"
    assert second == "| `grpo` | 0.000 (0.000 to 0.000) | 0.000 (0.000 to 0.000) |"
