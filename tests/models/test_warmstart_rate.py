"""Tests of the learning rate of warm starts: its values, and the limits of its last value."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from selfplay.learner.fine_tune import FineTune
from selfplay.models.warmstart import WarmStart
from selfplay.models.warmstart_rate import rate_factors
from selfplay.types import Demonstration


class Mute:
    """Demonstrations that are never read."""

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        raise NotImplementedError

    def pieces(self) -> list[str]:
        return []


@pytest.mark.parametrize("final_lr", [3.0, -0.1, float("nan"), float("inf")])
def test_a_last_rate_that_is_no_fraction_is_refused(final_lr: float) -> None:
    words = r"^final_lr: \S+ does not fit: a fraction from 0 to 1 is needed$"
    with pytest.raises(ValueError, match=words):
        WarmStart(demonstrations=Mute(), roles={}, final_lr=final_lr)
    with pytest.raises(ValueError, match=words):
        FineTune(examples=Mute(), final_lr=final_lr)


@pytest.mark.parametrize("kind", [WarmStart, FineTune])
@pytest.mark.parametrize("final_lr", [0.0, 1.0])
def test_both_ends_of_the_fraction_are_possible(kind: Any, final_lr: float) -> None:
    source = "demonstrations" if kind is WarmStart else "examples"
    assert kind(**{source: Mute()}, roles={}, final_lr=final_lr).final_lr == final_lr


def test_the_rate_rises_and_then_falls_to_its_last_value() -> None:
    factors = [rate_factors(step, steps=8, warmup_steps=4, final_lr=0.25) for step in range(8)]
    assert [rise for rise, _ in factors] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert [fall for _, fall in factors] == [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.25]
    assert rate_factors(0, steps=1, warmup_steps=0, final_lr=0.1) == (1.0, 1.0)
