"""Intervals against closed forms and, where there is none, against their coverage."""

import math

import numpy as np
import pytest

from selfplay.study.intervals import (
    Draws,
    benjamini_hochberg,
    jackknife,
    over_runs,
    share,
    student,
    wilson,
)


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
    """Ten episodes of each task say the same: the interval is as wide as with one of each."""
    rng = np.random.default_rng(0)
    tasks = [str(n) for n in range(40)]
    values = rng.normal(size=40)
    once = Draws(tasks=tasks).mean("x", values)
    often = Draws(tasks=[t for t in tasks for _ in range(10)]).mean("x", np.repeat(values, 10))
    assert often.value == pytest.approx(once.value)
    assert often.unit == once.unit == "task" and often.count == 40
    assert often.high - often.low == pytest.approx(once.high - once.low, rel=0.02)


def test_few_tasks_are_taken_as_given() -> None:
    """Two tasks, each always the same: nothing varies when the episodes are played again."""
    found = Draws(tasks=["a", "b"] * 20).mean("x", [0.0, 1.0] * 20)
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)
    assert found.unit == "episode, within each task"


def test_what_was_not_measured_is_left_out_and_nothing_is_no_zero() -> None:
    draws = Draws(tasks=["a"] * 4)
    assert draws.mean("x", [1.0, math.nan, 1.0, math.nan]).value == 1.0
    nothing = draws.ratio("x", [0.0] * 4, [0.0] * 4)
    assert math.isnan(nothing.value) and nothing.to_json()["value"] is None
    assert math.isnan(Draws(tasks=["a"]).mean("x", [1.0]).low)
    assert math.isnan(Draws(tasks=[]).mean("x", []).value)


def test_over_runs_is_students_interval() -> None:
    found = over_runs("x", [1.0, 2.0, 3.0])
    assert found.value == 2 and found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-5)
    assert math.isnan(over_runs("x", [1.0]).low) and not found.notes


def test_runs_that_are_all_the_same_know_no_spread() -> None:
    found = over_runs("x", [0.1, 0.1, 0.1], notes="paired by seed")
    assert found.low == found.value == found.high
    told = "paired by seed; the same in every training run: the interval knows no spread"
    assert found.notes == told


def test_the_interval_of_a_mean_covers_it() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for number in range(300):
        values = rng.normal(size=60)
        found = Draws(tasks=["a"] * 60, resamples=400, seed=number).mean("x", values)
        hits += found.low <= 0 <= found.high
    assert 0.91 <= hits / 300 <= 0.98  # nominal 0.95, three standard errors and the percentile bias


def test_the_jackknife_over_agents_covers_cross_play() -> None:
    """Additive effects of both players: a bootstrap over cells would cover 62 % of the time."""
    rng = np.random.default_rng(2)
    count, hits = 5, 0
    for _ in range(400):
        first, second = rng.normal(size=count), rng.normal(size=count)
        cells = first[:, None] + second[None] + 0.5 * rng.normal(size=(count, count))

        def cross(kept, cells=cells):  # type: ignore[no-untyped-def]
            return float(np.mean([cells[i, j] for i in kept for j in kept if i != j]))

        found = jackknife("x", cross, count)
        hits += found.low <= 0 <= found.high
    assert 0.92 <= hits / 400 <= 0.98


def test_few_episodes_of_each_task_vary_as_much_as_they_do() -> None:
    """The variance of a stratified mean, unbiased; two drawn of two would have half of it."""
    tasks = [str(n // m) for m in (2, 3) for n in range(4 * m)]
    tasks = [f"{task} of {place < 8}" for place, task in enumerate(tasks)]
    values = np.random.default_rng(3).normal(size=20)
    drawn = Draws(tasks=tasks, resamples=20000)
    groups = [values[group] for group in drawn.groups]
    assert sorted(map(len, groups)) == [2, 2, 2, 2, 3, 3, 3, 3]
    wanted = sum(len(each) * each.var(ddof=1) for each in groups) / 20**2
    assert (drawn.weights @ values / 20).var() == pytest.approx(wanted, rel=0.05)
    np.testing.assert_allclose(drawn.weights.sum(1), 20)


def test_an_interval_without_width_says_that_it_knows_no_spread() -> None:
    found = Draws(tasks=["a"] * 5).mean("x", [0.1] * 5, notes="nats")
    assert found.low == found.high == found.value
    assert found.notes == (
        "nats; the same in every episode, within each task: the interval knows no spread"
    )
    assert Draws(tasks=["a"] * 5).mean("x", [0.1] * 4 + [0.2]).notes == ""
