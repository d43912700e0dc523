"""Estimates from a matrix of payoffs, without the noise of a finite number of games."""

import numpy as np
import pytest

from selfplay.errors import RunError
from selfplay.league.empirical_game import nash, sizes
from selfplay.study.measures.matchups import Matchups, shape
from selfplay.study.stats.bootstrap import Draws

pytest.importorskip("scipy")

RPS = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
ORDER = np.array([[0.0, 1, 2], [-1, 0, 1], [-2, -1, 0]])
SKILLS = np.linspace(0.4, -0.4, 8)
LADDER = SKILLS[:, None] - SKILLS


def matchups(
    rng: np.random.Generator, truth: np.ndarray, episodes: int, *, tasks: int = 1
) -> Matchups:
    """Return games that are won or lost, with the expected gains `truth` of rows on columns."""
    count = len(truth)
    pays = {
        (i, j): np.where(rng.random(episodes) < (1 + truth[i, j]) / 2, 1.0, -1.0)
        for i in range(count)
        for j in range(count)
        if i != j
    }
    draws = Draws(tasks=[f"game {n % tasks}" for n in range(episodes)], resamples=300)
    return Matchups.of(pays, draws, [f"p{n}" for n in range(count)])


@pytest.mark.parametrize(
    ("truth", "fraction"),
    [(LADDER, 1.0), (RPS / 2, 0.0), ((RPS + ORDER) / 5, 2 / 3)],
)
def test_the_transitive_fraction_has_no_bias_from_noise(truth: np.ndarray, fraction: float) -> None:
    """A bootstrap of the measured fraction never covers 1; without the noise it does."""
    rng = np.random.default_rng(0)
    values, covered = [], 0
    for _ in range(40):
        found = shape(matchups(rng, truth, 60), nash(truth))[0]
        values.append(found.value)
        covered += found.low <= fraction <= found.high
    error = np.std(values) / np.sqrt(len(values))
    assert np.mean(values) == pytest.approx(fraction, abs=3 * error + 1e-3)
    assert covered >= 34  # of 40; fewer than 34 have a probability of 0.003 at a coverage of 0.95


@pytest.mark.parametrize("tasks", [1, 4, 60])
def test_the_noise_has_its_true_size_with_few_tasks(tasks: int) -> None:
    """Each seating of a pair has the variance 1 / 60, the mean of two seatings 1 / 120."""
    rng, parts = np.random.default_rng(0), []
    for _ in range(60):
        found = matchups(rng, np.zeros((5, 5)), 60, tasks=tasks)
        parts.append(float(sizes(found.noise)[1].mean()))
    error = np.std(parts) / np.sqrt(len(parts))
    assert np.mean(parts) == pytest.approx(20 / 120, abs=3 * error)


@pytest.mark.parametrize("tasks", [2, 4])
def test_the_transitive_fraction_has_no_bias_with_few_tasks(tasks: int) -> None:
    rng, truth = np.random.default_rng(0), (RPS + ORDER) / 5
    found = [shape(matchups(rng, truth, 60, tasks=tasks), nash(truth))[0].value for _ in range(60)]
    error = np.std(found) / np.sqrt(len(found))
    assert np.mean(found) == pytest.approx(2 / 3, abs=3 * error + 1e-3)


def test_the_interval_of_alpha_rank_is_within_0_and_1() -> None:
    rng = np.random.default_rng(0)
    found = matchups(rng, np.array([[0, 0.3], [-0.3, 0]]), 12, tasks=4)
    ends = [end for n in range(2) for end in (found.ranked(n).low, found.ranked(n).high)]
    assert min(ends) == 0 and max(ends) == 1


def test_a_matrix_of_noise_has_no_transitive_fraction() -> None:
    rng = np.random.default_rng(1)
    found = {e.name: e for e in shape(matchups(rng, np.zeros((6, 6)), 50), np.full(6, 1 / 6))}
    part = found["transitive share, noise taken off"]
    assert np.isnan(part.value) and part.notes == "most of the matrix is noise: play more games"
    assert 0.5 < found["noise, fraction of the matrix"].value < 2
    assert found["transitive share as measured"].null == pytest.approx(1 / 3)
    assert found["3-cycles beyond noise"].value == 0 < found["3-cycles"].value


def test_a_player_with_too_few_finished_games_is_refused() -> None:
    """All resamples with games of p3 have the same games of it, so its noise would seem to be 0."""
    rng = np.random.default_rng(0)
    pays = {(i, j): rng.normal(size=30) for i in range(4) for j in range(4) if i != j}
    for (i, j), pay in pays.items():
        if 3 in (i, j):
            pay[np.arange(30) != i + 5 * j] = np.nan
    draws = Draws(tasks=[str(n) for n in range(30)])
    with pytest.raises(RunError, match="too many games of p0 with p3 failed"):
        Matchups.of(pays, draws, ["p0", "p1", "p2", "p3"])
