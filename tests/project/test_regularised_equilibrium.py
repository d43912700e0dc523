"""Tests of equilibria with a KL term: decisions by formulas, and exploitability."""

import math
from typing import Any

import pytest

from tests.helpers.scripts import script

pytest.importorskip("pyspiel")

PASS, BET = 0, 1


def search(divergence: str) -> Any:
    module = script("regularised_equilibrium")
    return module.Equilibrium("kuhn_poker", divergence=divergence)


@pytest.fixture(scope="module")
def kuhn() -> Any:
    return search("reverse")


def chance(found: Any, situation: str, move: int) -> float:
    """Return the probability of a move; a situation is the own card and the moves so far."""
    return float(found.policy[found.table.state_lookup[situation], move])


@pytest.mark.parametrize("kl", [2.0, 0.5, 0.25])
def test_last_decisions_are_those_of_the_formula(kuhn: Any, kl: float) -> None:
    assert kuhn.solve(kl) <= 1e-3
    # The second player faces a bet. With a king (2) a call wins 2 and a fold loses 1; with a jack
    # (0) a call loses 2. The first player, who passed before, decides alike.
    for king, jack in (("2b", "0b"), ("2pb", "0pb")):
        assert chance(kuhn, king, BET) == pytest.approx(1 / (1 + math.exp(-3 / kl)), abs=2e-3)
        assert chance(kuhn, jack, BET) == pytest.approx(1 / (1 + math.exp(1 / kl)), abs=2e-3)


def test_exploitability_is_between_that_of_uniform_play_and_none(kuhn: Any) -> None:
    found = []
    for kl in (100.0, 1.0, 0.25):
        kuhn.solve(kl)
        found.append(kuhn.exploitability())
    assert found[0] == pytest.approx(11 / 24, abs=0.01)  # of uniform play
    assert found[0] > found[1] > found[2] > 0


@pytest.mark.parametrize("kl", [2.0, 0.5])
def test_the_forward_kl_has_the_formula_of_its_own(kl: float) -> None:
    found = search("forward")
    assert found.solve(kl) <= 1e-3
    for king, jack in (("2b", "0b"), ("2pb", "0pb")):
        for situation, gain in ((king, 3.0), (jack, -1.0)):  # the gain of a call over a fold
            call = chance(found, situation, BET)
            # At the maximum, every move has the same Q + kl u / p.
            assert gain + kl / (2 * call) == pytest.approx(kl / (2 * (1 - call)), abs=0.05)
