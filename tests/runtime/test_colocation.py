"""Tests of workers and ranks on the same GPUs: one kind rests while the other computes."""

from collections.abc import Callable
from typing import Any

import pytest

from selfplay.config.instantiate import build
from selfplay.errors import ConfigError, LearnersLost
from selfplay.runtime.colocation import Colocation
from selfplay.runtime.ray import RayRuntime

pytest.importorskip("ray")


def test_one_kind_rests_before_the_other_computes() -> None:
    done: list[str] = []
    shared = Colocation(
        workers_rest=lambda: done.append("workers"), ranks_rest=lambda: done.append("ranks")
    )
    moves: list[Callable[[], None]] = [shared.play, shared.learn, shared.learn, shared.play]
    for move in (*moves, shared.play, shared.learn):
        move()
    # The workers compute first, and nothing is offloaded between two calls of one kind.
    assert done == ["workers", "ranks", "workers"]
    assert shared.seconds > 0


def test_ranks_that_are_lost_while_they_rest_are_asked_again() -> None:
    losses = [LearnersLost("rank 0 died")]

    def rest() -> None:
        if losses:
            raise losses.pop()

    shared = Colocation(workers_rest=lambda: None, ranks_rest=rest)
    shared.learn()
    with pytest.raises(LearnersLost):
        shared.play()
    shared.learn()  # new ranks load their state; the workers still rest
    shared.play()
    assert not losses


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_staleness": 1}, "max_staleness must be 0 with colocated=true"),
        ({"workers": 4, "learners": 2}, "learners must be 4, the number of workers"),
        ({"worker_gpus": 0.5}, "worker_gpus and learner_gpus must be null"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(given: dict[str, Any], message: str) -> None:
    node = {"_target_": "selfplay.runtime.ray.RayRuntime", "colocated": True, **given}
    with pytest.raises(ConfigError, match=message) as refused:
        build(node, where="runtime")
    assert "\n" not in str(refused.value)
    assert RayRuntime(workers=3, learners=3, colocated=True).placement(0).learners == 3
