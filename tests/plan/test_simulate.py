"""Tests of simulated steps: conserved episodes, the closed form, and the age of samples."""

import pytest

from selfplay.plan.simulate import simulate
from tests.helpers.model_shapes import QWEN_7B, QWEN_32B
from tests.helpers.plan_workload import cluster, predicted, workload


def test_every_episode_is_learned_from_once_or_is_still_there() -> None:
    asked = workload(96, 800, 4000)
    for settings in ({}, {"rollout": 4}, {"rollout": 4, "lag": 1}, {"rollout": 6, "lag": 3}):
        found = simulate(predicted(asked, QWEN_7B, cluster(8, **settings)), steps=6)
        assert found.submitted == found.consumed + found.left
        assert found.consumed == 6 * 96 and len(found.ages) == 4 * 96
        assert len(found.steps) == 4
        assert 0 < found.generating <= 1 and 0 < found.learning <= 1


def test_without_lag_no_sample_is_stale() -> None:
    asked = workload(96, 800, 4000)
    for settings in ({}, {"rollout": 4}):
        assert set(simulate(predicted(asked, QWEN_7B, cluster(8, **settings))).ages) == {0}
    lagging = simulate(predicted(asked, QWEN_7B, cluster(8, rollout=4, lag=2)))
    assert 0 < sum(lagging.ages) / len(lagging.ages) <= 3


def test_equal_lengths_give_the_closed_form() -> None:
    asked = workload(64, 1000, 1000, cv=0.0)
    prediction = predicted(asked, QWEN_7B, cluster(8, overhead=1.0))
    assert simulate(prediction).step == pytest.approx(prediction.step(), rel=0.01)


def test_the_same_seed_gives_the_same_simulation() -> None:
    prediction = predicted(workload(64, 500, 2000), QWEN_7B, cluster(8))
    first, again = simulate(prediction, seed=1), simulate(prediction, seed=1)
    assert first == again != simulate(prediction, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rollout", "lag", "step", "age"),
    [
        (0, 0, 643, 0.0),
        (384, 0, 1088, 0.0),
        (384, 1, 513, 0.9),
        (288, 1, 347, 0.9),
        (288, 2, 286, 1.7),
        (288, 8, 286, 1.7),
        (256, 4, 320, 1.4),
        (320, 4, 329, 3.1),
    ],
)
def test_a_32b_on_512_devices(rollout: int, lag: int, step: float, age: float) -> None:
    asked = workload(8192, 8000, 32_768, cv=0.9, passes=1)
    layout = cluster(512, tensor=4, rollout=rollout, lag=lag, overhead=1.0, pause=5.0, publish=1e9)
    found = simulate(predicted(asked, QWEN_32B, layout), steps=9)
    assert found.step == pytest.approx(step, rel=0.06)
    assert sum(found.ages) / len(found.ages) == pytest.approx(age, abs=0.4)
