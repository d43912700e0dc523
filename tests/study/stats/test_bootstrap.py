"""Intervals, compared with closed forms or with their nominal coverage."""

import math

import numpy as np
import pytest

from selfplay.study.stats.bootstrap import Draws, benjamini_hochberg, over_runs, share, wilson
from selfplay.study.stats.pairs import over_pairs
from selfplay.study.stats.proportions import beta_below, clopper_pearson, effective_trials, student


@pytest.mark.parametrize(
    ("freedom", "point"),
    [(1, 12.706205), (2, 4.302653), (3, 3.182446), (4, 2.776445), (29, 2.045230)],
)
def test_the_points_of_students_t(freedom: int, point: float) -> None:
    assert student(freedom) == pytest.approx(point, abs=1e-6)


def test_wilson() -> None:
    assert wilson(0, 20) == pytest.approx((0, 0.16113), abs=1e-5)
    assert wilson(8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)
    assert math.isnan(share("none", 0, 0).value)


def test_q_values() -> None:
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.5]) == pytest.approx(
        [0.04, 0.16 / 3, 0.16 / 3, 0.5]
    )


def test_episodes_of_a_task_move_together() -> None:
    """The ten episodes of a task are equal: the interval is as wide as with one of each task."""
    rng = np.random.default_rng(0)
    tasks = [str(n) for n in range(40)]
    values = rng.normal(size=40)
    once = Draws(tasks=tasks).mean("x", values)
    often = Draws(tasks=[t for t in tasks for _ in range(10)]).mean("x", np.repeat(values, 10))
    assert often.value == pytest.approx(once.value)
    assert often.unit == once.unit == "task" and often.count == 40
    assert often.high - often.low == pytest.approx(once.high - once.low, rel=0.02)


def test_two_tasks_count_as_two_trials() -> None:
    """One task always succeeds and one never does. They count as two trials, not 40."""
    found = Draws(tasks=["a", "b"] * 20).mean("x", [0.0, 1.0] * 20)
    assert (found.value, found.low, found.high) == (0.5, *clopper_pearson(1, 2))
    assert (found.unit, found.count) == ("task", 2)
    assert found.method == "Clopper-Pearson at the effective number of trials"


def test_episodes_of_one_task_are_trials_of_that_task() -> None:
    found = Draws(tasks=["a"] * 8).mean("x", [1.0] * 7 + [0.0])
    assert (found.low, found.high) == pytest.approx(clopper_pearson(7, 8))
    assert (found.unit, found.count) == ("episode of one task", 8)
    never = Draws(tasks=["a"] * 8).mean("x", [0.0] * 8)
    assert (never.low, never.high) == pytest.approx((0, 1 - 0.025 ** (1 / 8)))


def test_the_interval_of_clopper_and_pearson() -> None:
    """Compare with closed forms, and with values from tables for 8 of 10."""
    assert clopper_pearson(0, 20) == pytest.approx((0, 1 - 0.025 ** (1 / 20)))
    assert clopper_pearson(20, 20) == pytest.approx((0.025 ** (1 / 20), 1))
    assert clopper_pearson(8, 10) == pytest.approx((0.443905, 0.974789), abs=1e-6)
    assert math.isnan(clopper_pearson(0, 0)[0])
    assert beta_below(0.3, 2, 3) == pytest.approx(0.3483)  # 6 x^2 - 8 x^3 + 3 x^4
    assert beta_below(0.9, 5, 1) == pytest.approx(0.9**5)


def test_the_effective_number_of_trials_lies_between_tasks_and_episodes() -> None:
    eight = np.full(6, 8.0)
    assert effective_trials(np.array([8.0, 0, 8, 8, 0, 8]), eight) == pytest.approx(6)
    assert effective_trials(np.full(6, 4.0), eight) == 48  # more alike than by chance
    assert effective_trials(np.zeros(6), eight) == pytest.approx(6)  # the similarity is not known
    some = effective_trials(np.array([2.0, 6, 4, 3, 7, 4]), eight)
    assert 6 < some < 48
    uneven = np.array([90.0, 5, 5])
    assert effective_trials(np.zeros(3), uneven) == pytest.approx(100**2 / (90**2 + 50))


def test_a_difference_is_not_a_proportion() -> None:
    """The differences are only 0 and 1 here, but could be -1 in other games."""
    values = [1.0, 0, 0, 1, 0, 0, 0, 1]
    gain = Draws(tasks=["a"] * 8).mean("x", values, null=0.0)
    assert gain.low < 0 < gain.high and "Student's t" in gain.method
    cut = Draws(tasks=["a"] * 8).mean("x", values, null=0.0, bounds=(0.0, 0.6))
    assert (cut.low, cut.high) == (0.0, 0.6)


def test_missing_values_are_left_out_and_no_values_give_nan() -> None:
    draws = Draws(tasks=["a"] * 4)
    assert draws.mean("x", [1.0, math.nan, 1.0, math.nan]).value == 1.0
    nothing = draws.ratio("x", [0.0] * 4, [0.0] * 4)
    assert math.isnan(nothing.value) and nothing.to_json()["value"] is None
    assert math.isnan(Draws(tasks=["a"]).mean("x", [1.0]).low)
    assert math.isnan(Draws(tasks=[]).mean("x", []).value)


@pytest.mark.parametrize("tasks", [40, 1])
def test_units_without_a_value_do_not_make_an_interval_narrower(tasks: int) -> None:
    """Three of 40 values are measured. With 39 degrees of freedom the coverage was 75 %."""
    rng, covered = np.random.default_rng(0), 0
    names = [str(number % tasks) for number in range(40)]
    for seed in range(400):
        values = np.full(40, np.nan)
        values[:3] = rng.normal(size=3)
        found = Draws(tasks=names, resamples=200, seed=seed).mean("x", values, null=0.0)
        covered += found.low <= 0.0 <= found.high
    assert found.count == 3 and "Student's t" in found.method
    assert 0.92 <= covered / 400 <= 0.98  # nominal 0.95, three standard errors


def test_tasks_without_a_trial_are_not_units_of_a_proportion() -> None:
    draws = Draws(tasks=[*"aabbccdd"])
    found = draws.ratio("x", [1.0, 0, 2, 0, 0, 0, 0, math.nan], [2.0, 0, 2, 0, 0, 0, 0, 3])
    assert (found.value, found.unit, found.count) == (0.75, "task", 2)
    assert found == Draws(tasks=["a", "b"]).ratio("x", [1.0, 2], [2.0, 2])


def test_over_runs_is_students_interval() -> None:
    found = over_runs("x", [1.0, 2.0, 3.0])
    assert found.value == 2 and found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-5)
    assert math.isnan(over_runs("x", [1.0]).low) and not found.notes


def test_equal_runs_have_an_interval_without_width() -> None:
    found = over_runs("x", [0.1, 0.1, 0.1], notes="paired by seed")
    assert found.low == found.value == found.high
    notes = "paired by seed; the same in every training run: the interval has no width"
    assert found.notes == notes


def test_the_interval_of_a_mean_covers_it() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for number in range(300):
        values = rng.normal(size=60)
        found = Draws(tasks=["a"] * 60, resamples=400, seed=number).mean("x", values)
        hits += found.low <= 0 <= found.high
    assert 0.91 <= hits / 300 <= 0.98  # nominal 0.95, three standard errors and the percentile bias


@pytest.mark.parametrize(("tasks", "episodes"), [(6, 2), (5, 2), (4, 3), (10, 2)])
def test_the_interval_of_fixed_tasks_covers_their_mean(tasks: int, episodes: int) -> None:
    """The coverage of 6 x 2 episodes was 89 % with N - 1 degrees of freedom for N episodes."""
    rng, names = np.random.default_rng(0), [str(task) for task in range(tasks)] * episodes
    draws, covered = Draws(tasks=names, resamples=200, given=True), 0
    assert draws.freedom == tasks * (episodes - 1)
    for _ in range(1000):
        found = draws.mean("x", rng.normal(size=tasks * episodes), null=0.0)
        covered += found.low <= 0.0 <= found.high
    assert 0.93 <= covered / 1000 <= 0.97


def test_intervals_over_runs_cover_cross_play() -> None:
    """Both players have additive effects. A bootstrap over cells would have a coverage of 62 %."""
    rng = np.random.default_rng(2)
    count, hits = 5, 0
    for _ in range(400):
        first, second = rng.normal(size=count), rng.normal(size=count)
        cells = first[:, None] + second[None] + 0.5 * rng.normal(size=(count, count))
        (found,) = [e for e in over_pairs(cells, (-9.0, 9.0)) if e.name.startswith("cross")]
        hits += found.low <= 0 <= found.high
    assert hits / 400 >= 0.93


@pytest.mark.parametrize("size", [2, 3])
def test_resamples_of_few_episodes_vary_as_much_as_they_do(size: int) -> None:
    """The variance for one task is unbiased; drawing two of two episodes would give half of it."""
    values = np.random.default_rng(3).normal(size=size)
    drawn = Draws(tasks=["a"] * size, resamples=20000)
    assert (drawn.weights @ values / size).var() == pytest.approx(
        values.var(ddof=1) / size, rel=0.05
    )
    np.testing.assert_allclose(drawn.weights.sum(1), size)


def test_resamples_of_few_tasks_have_the_spread_of_tasks_and_episodes() -> None:
    tasks = [str(n // 4) for n in range(12)]
    values = np.random.default_rng(3).normal(size=12)
    drawn = Draws(tasks=tasks, resamples=20000)
    means = values.reshape(3, 4).mean(1)
    within = values.reshape(3, 4).var(axis=1, ddof=1).sum() / 4 / 9
    wanted = means.var(ddof=1) / 3 + within * 3 / 2
    assert (drawn.weights @ values / 12).var() == pytest.approx(wanted, rel=0.05)
    np.testing.assert_allclose(drawn.weights.sum(1), 12)


def test_many_tasks_are_drawn_whole() -> None:
    drawn = Draws(tasks=[str(n // 2) for n in range(20)])
    np.testing.assert_array_equal(drawn.weights[:, ::2], drawn.weights[:, 1::2])


def test_an_interval_without_width_has_a_note() -> None:
    found = Draws(tasks=["a"] * 5).mean("x", [0.1] * 5, notes="nats")
    assert found.low == found.high == found.value
    assert found.notes == ("nats; the same in every episode of one task: the interval has no width")
    assert Draws(tasks=["a"] * 5).mean("x", [0.1] * 4 + [0.2]).notes == ""
