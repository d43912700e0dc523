"""Mutual information of few samples, by hand and in simulations with known values."""

import math
from math import log

import numpy as np
import pytest

from selfplay.study.stats.bootstrap import Estimate
from selfplay.study.stats.mutual_information import (
    adjusted,
    corrected,
    entropy,
    jackknife,
    mutual_information,
    plug_in,
)


def covers(estimate: Estimate, truth: float) -> bool:
    return estimate.low - 1e-9 <= truth <= estimate.high + 1e-9


def test_plug_in_information() -> None:
    x = list("abcd") * 25
    assert plug_in(x, x) == pytest.approx(log(4))
    y = [*"aaaaaaaaab", *"bbbbbbbbba"]
    assert plug_in([*"a" * 10, *"b" * 10], y) == pytest.approx(0.368064, abs=1e-6)
    assert math.isnan(plug_in([], []))


def test_adjusted_information_by_hand() -> None:
    """Two of the six pairings of aabb with 0011 have ln 2 nats of information, four have none."""
    chance = log(2) / 3
    assert adjusted(log(2), chance, log(2)) == pytest.approx(log(2))
    assert adjusted(chance, chance, log(2)) == 0
    assert adjusted(0.0, chance, log(2)) == pytest.approx(-log(2) / 2)
    assert adjusted(0.0, 0.0, 0.0) == 0 and math.isnan(adjusted(log(2), log(2), log(2)))
    code = mutual_information("x", [*"aabb"] * 8, [*"0011"] * 8)
    assert [code.value, code.low, code.high] == pytest.approx([log(2)] * 3)


def test_the_jackknife_is_that_of_leaving_one_pair_out() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.integers(3, size=20).tolist(), rng.integers(4, size=20).tolist()
    left = [plug_in(x[:n] + x[n + 1 :], y[:n] + y[n + 1 :]) for n in range(20)]
    pseudo = 20 * plug_in(x, y) - 19 * np.array(left)
    expected = (pseudo.mean(), pseudo.std(ddof=1) / 20**0.5)
    assert jackknife(x, y) == pytest.approx(expected)
    assert jackknife([*"aabb"], [*"0011"]) == pytest.approx((log(2), 0))


@pytest.mark.parametrize("uses", [20, 30, 64, 100])
def test_tables_of_rare_values_alone_have_no_information(uses: int) -> None:
    """Random pairings have as much information, so the correction would divide by about 0."""
    names = [str(number) for number in range(uses)]
    for views in (names, [*"ab"] * (uses // 2)):
        assert math.isnan(corrected(views, names, chance=plug_in(views, names)))


@pytest.mark.parametrize(
    ("kinds", "uses", "interval"),
    [((4, 4), 100, True), ((8, 8), 160, True), ((8, 8), 40, False), ((16, 12), 64, False)],
)
def test_no_information_is_found_where_there_is_none(
    kinds: tuple[int, int], uses: int, interval: bool
) -> None:
    """The plug-in estimate is biased up, and more so if there are many rare values."""
    rng, found, biased = np.random.default_rng(0), [], 0.0
    for _ in range(40):
        x, y = (rng.integers(kind, size=uses).tolist() for kind in kinds)
        found.append(mutual_information("x", x, y))
        biased += plug_in(x, y) / 40
    assert biased > 0.04
    assert np.mean([each.value for each in found]) == pytest.approx(0, abs=biased / 4)
    assert all(math.isfinite(each.low) == interval for each in found)
    assert all(("too many for an interval" in each.notes) != interval for each in found)
    if interval:
        assert sum(covers(each, 0.0) for each in found) >= 36


@pytest.mark.parametrize(
    ("views", "words", "kept", "uses"),
    [(4, 4, 0.7, 64), (4, 12, 0.7, 128), (8, 8, 0.5, 128), (8, 16, 0.5, 256), (4, 12, 0.7, 512)],
)
def test_information_of_noisy_codes_is_in_the_interval(
    views: int, words: int, kept: float, uses: int
) -> None:
    """A speaker says the word of its view with the probability `kept`, else a uniform word."""
    rng, covered, bias = np.random.default_rng(1), 0, 0.0
    chances = np.full((views, words), (1 - kept) / words)
    chances[range(views), range(views)] += kept
    for _ in range(40):
        x = rng.integers(views, size=uses)
        y = [int(rng.choice(words, p=chances[view])) for view in x]
        seen = np.bincount(x, minlength=views) / uses
        truth = float(entropy(seen @ chances) - seen @ entropy(chances))
        found = mutual_information("x", x.tolist(), y)
        covered += covers(found, truth)
        bias += (found.value - truth) / 40
    assert covered >= 34 and abs(bias) < 0.08


@pytest.mark.parametrize("kinds", [60, 100])
def test_words_that_are_all_different_have_no_information_to_estimate(kinds: int) -> None:
    """A variable with rare values seems to depend on x, although it is independent of x."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(4, size=100).tolist(), [n % kinds for n in range(100)]
    found = mutual_information("x", x, y)
    assert plug_in(x, y) > 0.5 * log(4) and np.isnan([found.value, found.low, found.high]).all()
    assert "by chance" in found.notes and "too many for so few samples" in found.notes
    assert found.p is not None and found.p > 0.05


def test_the_information_by_chance_is_in_the_notes() -> None:
    x = [*"ab"] * 50
    found = mutual_information("x", x, x)
    assert found.value == pytest.approx(log(2)) and found.direction == "unknown"
    assert "0.00" in found.notes and "by chance, of 2 x 2 different values" in found.notes
