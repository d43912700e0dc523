"""Tests of several optimizer steps per batch: mini-batches and epochs."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import BatchCounts, PolicyLoss
from tests.helpers.builders import llama, sample, weights
from tests.helpers.gradients import REINFORCE, logprobs, on_policy, samples

SFT = replace(REINFORCE, advantage="one")


def test_mini_batches_are_steps_and_the_warm_up_counts_them() -> None:
    learner = Learner(
        llama(), objective=SFT, settings=LearnerSettings(lr=1.0e-3, mini_batches=2, warmup_steps=4)
    )
    first = learner.update(samples(), step=1)
    assert learner.steps == 2
    assert first["lr"] == pytest.approx((0.25e-3 + 0.5e-3) / 2)
    assert first["tokens"] == 12
    learner.update(samples(), step=2)
    assert learner.update(samples(), step=3)["lr"] == pytest.approx(1e-3)


def test_epochs_are_passes_with_the_ratio_to_the_first_weights() -> None:
    """Compare with a plain loop over PPO's loss, in float64."""
    model, plain = llama().double(), llama().double()
    start = torch.cat([one.flatten() for one in weights(plain)])
    given = on_policy(model, samples())
    settings = LearnerSettings(lr=0.05, epochs=3, clip_norm=1e9, packing="rows")
    objective = PolicyLoss(ratio="token", clip="ppo", aggregate="token_mean", low=0.2, high=0.2)
    learner = Learner(model, objective=objective, settings=settings)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.05, weight_decay=0.0)
    masks = [torch.tensor(each.turn.loss_mask) for each in given]
    for _ in range(3):
        total = torch.tensor(0.0, dtype=torch.float64)
        for each, mask in zip(given, masks, strict=True):
            ratio = (logprobs(plain, each) - torch.tensor(each.turn.logprobs)).exp()
            advantage = torch.tensor(each.advantage)
            least = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            total = total - (least * mask).sum()
        optimizer.zero_grad()
        (total / sum(int(mask.sum()) for mask in masks)).backward()
        optimizer.step()
    found = learner.update(given, step=1)
    assert learner.steps == 3 and found["clipped"] > 0
    assert found["tokens"] == 3 * sum(int(mask.sum()) for mask in masks)
    mine, theirs = (torch.cat([one.flatten() for one in weights(m)]) for m in (model, plain))
    assert (mine - theirs).norm() <= 1e-4 * (theirs - start).norm()


def test_each_epoch_has_other_mini_batches() -> None:
    seen: list[tuple[str, ...]] = []

    class Noted(Learner):
        def optimize(self, found: Any, totals: BatchCounts, *, step: int) -> dict[str, float]:
            seen.append(tuple(str(each.turn.completion_ids) for each in found))
            return super().optimize(found, totals, step=step)

    given = [sample([1, 2], [3 + place, 4], 1.0) for place in range(12)]
    settings = LearnerSettings(mini_batches=3, epochs=2)
    Noted(llama(), objective=SFT, settings=settings).update(given, step=1)
    first, second = seen[:3], seen[3:]
    assert len(second) == 3 and sorted(sum(first, ())) == sorted(sum(second, ()))
    assert set(map(frozenset, first)).isdisjoint(map(frozenset, second))


@pytest.mark.parametrize("key", ["mini_batches", "epochs"])
def test_several_steps_without_a_ratio_are_a_note(key: str) -> None:
    several = replace(LearnerSettings(), **{key: 2})  # type: ignore[arg-type]
    free = PolicyLoss(ratio="none", clip="none")
    (note,) = Learner(llama(), objective=free, settings=several).notes
    assert "a batch has 2 optimizer steps, and this objective has no ratio" in note
    assert not Learner(llama(), objective=free, settings=LearnerSettings()).notes
    for objective in (PolicyLoss(), SFT):
        assert not Learner(llama(), objective=objective, settings=several).notes


@pytest.mark.parametrize(
    ("count", "sizes"), [(13, [3, 3, 3, 4]), (9, [2, 2, 2, 3]), (5, [1, 1, 1, 2]), (2, [1, 1])]
)
def test_mini_batches_are_as_many_as_asked_and_of_equal_size(count: int, sizes: list[int]) -> None:
    steps: list[int] = []

    class Counted(Learner):
        def optimize(self, found: Any, totals: BatchCounts, *, step: int) -> dict[str, float]:
            steps.append(totals.sequences)
            return {}

    learner = Counted(llama(), objective=SFT, settings=LearnerSettings(mini_batches=4))
    learner.update([sample([1], [2], 1.0) for _ in range(count)], step=1)
    assert steps == sizes
