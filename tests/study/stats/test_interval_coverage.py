"""Coverage of intervals of few tasks or few runs."""

import sys

import pytest

from tests.helpers.repository import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import check_intervals as check

LEAST = 0.9
"""Least coverage in every setting; the nominal coverage is 0.95."""


@pytest.mark.parametrize("size", check.FEW)
def test_proportions_of_few_tasks(size: tuple[int, int]) -> None:
    """A percentile bootstrap of one to three tasks often has a coverage of only 58 to 73 %.

    Its coverage is even lower if tasks differ.
    """
    for rate, spread in ((0.5, 0.0), (0.8, 0.3), (0.95, 0.0), (0.3, 1.0)):
        found = check.proportion(*size, rate, spread, simulations=300)
        assert found.held >= LEAST, (size, rate, spread, found)


@pytest.mark.parametrize("runs", check.RUNS)
def test_the_gap_over_runs_of_two_codes(runs: int) -> None:
    for rate in (0.5, 0.8):
        found = check.gap(runs, rate, simulations=100, noise=0.05)
        assert found.held >= LEAST, (runs, rate, found)


def test_simpler_methods_have_too_low_a_coverage() -> None:
    """The simulations can tell a poor interval from a good one."""
    assert check.gap(4, 0.5, simulations=300).held_before < 0.6
    assert check.proportion(3, 4, 0.8, 0.3, simulations=300).held_before < 0.8
    assert check.proportion(1, 4, 0.95, 0.0, simulations=300).held_before < 0.8


def test_intervals_of_many_tasks_are_hardly_wider_than_the_bootstrap() -> None:
    for rate, spread in ((0.5, 0.1), (0.8, 0.3)):
        found = check.proportion(60, 4, rate, spread, simulations=40)
        assert found.width < 1.2 * found.width_before, (rate, spread, found)


@pytest.mark.slow
@pytest.mark.parametrize("size", check.FEW)
@pytest.mark.parametrize("spread", check.SPREADS)
def test_proportions_at_every_rate_and_spread(size: tuple[int, int], spread: float) -> None:
    for rate in check.RATES:
        found = check.proportion(*size, rate, spread, simulations=1000, seed=1)
        assert found.held >= LEAST, (size, rate, spread, found)


@pytest.mark.slow
@pytest.mark.parametrize("runs", check.RUNS)
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_gap_at_every_rate(runs: int, noise: float) -> None:
    for rate in check.CODES:
        found = check.gap(runs, rate, simulations=1000, noise=noise, seed=1)
        assert found.held >= LEAST, (runs, rate, noise, found)
