"""Tests of `scripts/gradient_noise.py`: the exact gradient, estimates and their statistics."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from selfplay.credit.rloo import RLOO
from selfplay.sampler.independent import Independent
from tests.helpers.scripts import script

TURNS = 2


@pytest.fixture(scope="module")
def noise() -> Any:
    return script("gradient_noise")


def expected_return(noise: Any, policy: Any) -> float:
    """Return the mean return over the tasks, as a sum over all plays."""
    total = 0.0
    for task in noise.tasks(TURNS, 0):
        for first in (0, 1):
            one = policy.chance(f"{task.id} ")
            for second in (0, 1):
                two = policy.chance(f"{task.id} {first}")
                likely = (one if first else 1 - one) * (two if second else 1 - two)
                moves = [first, second]
                paid = sum(noise.worth(task.payload, moves[:n]) for n in (1, 2))
                total += likely * paid / 4
    return total


def test_the_exact_gradient_is_that_of_the_expected_return(noise: Any) -> None:
    known = noise.tasks(TURNS, 0)
    policy = noise.random_policy(known, TURNS, 0)
    found = noise.exact(policy, known, TURNS)
    for place in range(len(policy.logits)):
        moved = []
        for change in (1e-5, -1e-5):
            logits = policy.logits.copy()
            logits[place] += change
            other = noise.Policy(states=policy.states, logits=logits)
            moved.append(expected_return(noise, other))
        assert found[place] == pytest.approx((moved[0] - moved[1]) / 2e-5, abs=1e-8)


@pytest.mark.parametrize("early", [False, True])
def test_an_unbiased_method_has_the_exact_gradient_in_the_mean(noise: Any, early: bool) -> None:
    known = noise.tasks(TURNS, 0)
    policy = noise.random_policy(known, TURNS, 0)
    arena = partial(noise.Relay, turns=TURNS, early=early)
    method = ("rloo", RLOO(), Independent(group_size=4))
    found, sampled = noise.batches(policy, known, method, arena, count=400, seed=0)
    assert sampled == 4 * 4 * TURNS
    # The mean over samples is the mean over the turns: the sum over turns is TURNS times as large.
    error = found.std(0, ddof=1) / np.sqrt(len(found))
    away = np.abs(found.mean(0) * TURNS - noise.exact(policy, known, TURNS)) / (error * TURNS)
    # There are 12 numbers; a normal variable exceeds 4 standard errors with probability 6e-5.
    assert away.max() < 4


def test_the_statistics_by_hand(noise: Any) -> None:
    found = np.array([[3.0, 0.0], [5.0, 0.0], [4.0, 1.0], [4.0, -1.0]])
    direction, spread, right = noise.statistics(found, np.array([2.0, 0.0]), 500)
    # The squared distances to the mean (4, 0) are 1 each, so the variance is 4 / 3. An unbiased
    # estimate of the squared mean is 16 - 1 / 3.
    assert (direction, spread) == pytest.approx((1.0, (4 / 3) / (16 - 1 / 3) * 0.5))
    assert right == pytest.approx((1 + 1 + 2 * 4 / np.sqrt(17)) / 4)


def test_the_command_prints_a_line_for_each_method(
    noise: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["gradient_noise", "--pay", "late", "--turns", "2", "--batches", "20"]
    monkeypatch.setattr("sys.argv", words)
    noise.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 turns, pay late; 20 batches of 4 groups" and len(lines) == 2 + 14
    assert all(line.count(" | ") == 4 for line in lines[1:])
