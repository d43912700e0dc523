"""Tests of the tabular bake-off, with values by hand or by finite differences."""

from typing import Any

import numpy as np
import pytest

from tests.helpers.scripts import script

games: Any = script("enumerated_games")
methods: Any = script("enumerated_methods")
script("bakeoff_learning")
script("bakeoff_table")
bakeoff: Any = script("tabular_bakeoff")


def test_a_uniform_policy_earns_the_mean_of_the_payoffs() -> None:
    hunt = games.GAMES["hunt"]
    # Both at home 1.75 each; one at home (1.75 + 0) / 2; both hunt 4.
    assert hunt.value(np.zeros((2, 5, 2))) == pytest.approx((1.75 + 2 * 0.875 + 4) / 4)
    assert games.GAMES["relay"].value(np.zeros((2, 10, 3))) == pytest.approx(2 / 81)


@pytest.mark.parametrize("name", ["hunt", "relay", "steps", "dilemma", "pennies"])
@pytest.mark.parametrize("team", [True, False])
def test_the_exact_gradient_is_that_of_the_expected_return(name: str, team: bool) -> None:
    game = games.GAMES[name]
    logits, found = game.logits(3), game.exact(game.logits(3), team=team)
    for agent, state, action in [(0, 4, 0), (1, 4, 1), (0, 1, 1), (1, 2, 0)]:
        moved = logits.copy()
        moved[agent, state, action] += 1e-6
        before, after = (game.value(each, team=team) for each in (logits, moved))
        rise = after - before if team else after[agent] - before[agent]
        assert found[agent, state, action] == pytest.approx(rise / 1e-6, abs=1e-5)


def test_noise_and_bias_of_known_estimates() -> None:
    exact = np.array([3.0, 4.0])
    draw = np.random.default_rng(0)
    # Twice the gradient, plus noise of variance 4 in each of two directions: 8 / (4 * 25).
    found = 2 * exact + 2 * draw.standard_normal((200_000, 2))
    judged = bakeoff.judged(found, exact)
    assert judged["noise"] == pytest.approx(0.08, rel=0.02)
    assert judged["bias"] == pytest.approx(0.0, abs=1e-5)
    # A shift of the mean at right angles to the gradient by half of its length.
    judged = bakeoff.judged(found + np.array([-4.0, 3.0]), exact)
    assert judged["bias"] == pytest.approx(25 / 100, rel=0.01)


def test_unbiased_methods_have_the_direction_of_the_exact_gradient() -> None:
    game = games.GAMES["steps"]
    for name in ("rloo", "magrpo"):
        assert abs(bakeoff.noise(game, methods.METHODS[name], 0, batches=400)["bias"]) < 0.03


@pytest.mark.parametrize("name", list(methods.METHODS))
def test_every_method_learns_from_equally_many_completions(name: str) -> None:
    method, game = methods.METHODS[name], games.GAMES["relay"]
    player = games.Player(game, np.random.default_rng(0))
    batch = player.sample(method.sampler(), groups=method.groups(game), step=1)
    assert player.completions == methods.BUDGET
    assert methods.estimate(method.make(game), player.logits, batch).shape == (2, 10, 3)


def test_learning_finds_the_relay_and_is_repeatable() -> None:
    game, method = games.GAMES["relay"], methods.METHODS["rloo"]
    first, again = (bakeoff.learn(game, method, 0, steps=20, rate=0.3) for _ in range(2))
    assert first == again and len(first) == 21
    assert first[0] < 0.3 and first[-1] > 0.9


def test_tables_name_methods_that_are_not_defined(capsys: pytest.CaptureFixture[str]) -> None:
    bakeoff.main(["noise", "--games", "hunt", "--methods", "rloo", "pass_at_k", "--seeds", "2",
                  "--batches", "4"])  # fmt: skip
    printed = capsys.readouterr().out
    assert "| `rloo` | own |" in printed and "not defined: `pass_at_k` (graded)" in printed
