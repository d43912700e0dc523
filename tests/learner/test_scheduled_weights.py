"""Tests of a learner whose objective has weights that change with the training step."""

from dataclasses import replace

import pytest
import torch

from selfplay.config.schedule import Schedule
from selfplay.errors import ConfigError
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from tests.helpers.builders import llama, same, weights
from tests.helpers.gradients import REINFORCE, on_policy, samples


def test_a_step_has_the_scheduled_weight_of_the_entropy_bonus() -> None:
    def after(*weights_of_steps: float | Schedule) -> list[torch.Tensor]:
        model = llama()
        learner = Learner(model, objective=REINFORCE, settings=LearnerSettings(lr=1e-2))
        for step, weight in enumerate(weights_of_steps, start=1):
            learner.objective = replace(REINFORCE, entropy=weight)
            learner.update(samples(), step=step)
        return weights(model)

    falling = Schedule(steps=(1, 2), values=(0.5, 0.25))
    assert same(after(falling, falling), after(0.5, 0.25))
    assert not same(after(falling, falling), after(0.5, 0.5))


@pytest.mark.parametrize("weight", [0.0, 0.3])
@pytest.mark.parametrize("split", [{}, {"mini_batches": 2, "epochs": 2}])
def test_a_flat_schedule_equals_its_number_bit_for_bit(
    weight: float, split: dict[str, int]
) -> None:
    def after(kl: float | Schedule, entropy: float | Schedule) -> list[torch.Tensor]:
        model = llama()
        learner = Learner(
            model,
            objective=PolicyLoss(kl=kl, entropy=entropy, reference="ema"),
            reference=llama(seed=1),
            settings=LearnerSettings(lr=1e-2, max_tokens=20, **split),  # type: ignore[arg-type]
        )
        for step in (1, 2, 3):
            learner.update(on_policy(model, samples()), step=step)
        return weights(model)

    flat = Schedule(steps=(0, 2, 7), values=(weight, weight, weight))
    assert same(after(flat, flat), after(weight, weight))
    assert same(after(weight, flat), after(flat, weight))


def test_a_batch_learns_with_the_weights_of_its_step() -> None:
    def after(*steps: tuple[int, float | Schedule]) -> tuple[list[torch.Tensor], dict[str, float]]:
        model, metrics = llama(), dict[str, float]()
        settings = LearnerSettings(lr=1e-2, mini_batches=2, epochs=2)
        learner = Learner(model, objective=PolicyLoss(), reference=llama(seed=1), settings=settings)
        for step, weight in steps:
            learner.objective = PolicyLoss(kl=weight, entropy=weight)
            metrics = learner.update(on_policy(model, samples()), step=step)
        return weights(model), metrics

    falling = Schedule(steps=(1, 3), values=(0.5, 0.0))
    learned, metrics = after((1, falling), (2, falling), (3, falling))
    assert same(learned, after((1, 0.5), (2, 0.25), (3, 0.0))[0])
    assert metrics["kl_weight"] == metrics["entropy_weight"] == 0.0
    assert "reference_kl" not in metrics and metrics["idle_samples"] > 0
    # A resumed run has the weights of its step, not those of the first step.
    resumed, metrics = after((2, falling))
    assert same(resumed, after((2, 0.25))[0])
    assert metrics["kl_weight"] == metrics["entropy_weight"] == 0.25
    assert metrics["idle_samples"] == 0


def test_an_ema_moves_at_steps_without_its_kl_term() -> None:
    model, reference, start = llama(), llama(), weights(llama())
    later = Schedule(steps=(5, 6), values=(0.0, 1.0))
    objective = PolicyLoss(kl=later, reference="ema", ema_rate=0.5)
    settings = LearnerSettings(lr=1e-2)
    with pytest.raises(ConfigError, match="needs a reference"):
        Learner(llama(), objective=objective)
    learner = Learner(model, objective=objective, reference=reference, settings=settings)
    metrics = learner.update(on_policy(model, samples()), step=1)
    assert "reference_kl" not in metrics and not same(start, weights(reference))
