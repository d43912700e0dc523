"""Tests of rollout correction: weights by hand, and their effect in a learner."""

import math
from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
import torch

from selfplay.errors import DivergedError
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.learner.rollout_correction import Correction, correct
from tests.helpers.builders import llama, sample
from tests.helpers.gradients import close, gradient, on_policy, samples


def corrected(mode: Correction, ratios: list[float], advantage: Any = 2.0, **fields: Any) -> Any:
    one = sample([1], range(5, 5 + len(ratios)), advantage, **fields)
    now = [log(ratio) - 1.0 for ratio in ratios]
    (found,), metrics = correct([one], [now], mode=mode, low=0.5, high=2.0)
    assert found.turn.logprobs == tuple(now)
    return found.advantage, metrics


def test_truncated_weights_are_cut_from_above() -> None:
    weighted, metrics = corrected("truncated", [0.1, 1.0, 3.0])
    assert weighted == pytest.approx((0.2, 2.0, 4.0))
    assert metrics["corrected_share"] == pytest.approx(1 / 3)
    wanted = sum(w - 1 - log(w) for w in (0.1, 1.0, 3.0)) / 3
    assert metrics["mismatch_kl"] == pytest.approx(wanted)


def test_masked_weights_vanish_outside_the_band() -> None:
    weighted, metrics = corrected("masked", [0.1, 1.0, 3.0, 1.5], advantage=(2.0, 1.0, 1.0, -1.0))
    assert weighted == pytest.approx((0.0, 1.0, 0.0, -1.5))
    assert metrics["corrected_share"] == pytest.approx(0.5)


@pytest.mark.parametrize("now", [-0.5, -1.5])
def test_a_weight_at_a_bound_of_the_band_is_within_it(now: float) -> None:
    given = [sample([1], [5], 1.0, logprobs=(-1.0,))]
    (found,), metrics = correct(given, [[now]], mode="masked", low=exp(-0.5), high=exp(0.5))
    assert found.advantage == (exp(now + 1.0),) and metrics["corrected_share"] == 0.0


def test_a_token_of_sampler_probability_0_has_the_largest_weight() -> None:
    given = [sample([1], [5], 1.0, logprobs=(-1000.0,))]
    (found,), metrics = correct(given, [[-1.0]], mode="truncated", low=0.5, high=2.0)
    assert found.advantage == (2.0,)
    assert metrics["mismatch_kl"] == pytest.approx(exp(20) - 21), "the exponent is bounded"


def test_masked_tokens_are_not_counted() -> None:
    _, metrics = corrected("masked", [9.0, 1.0], loss_mask=(0, 1))
    assert metrics == pytest.approx({"mismatch_kl": 0.0, "corrected_share": 0.0})
    assert correct([], [], mode="masked", low=0.5, high=2.0)[1]["mismatch_kl"] == 0.0


@pytest.mark.parametrize("mode", ["truncated", "masked"])
def test_without_mismatch_a_correction_changes_nothing(mode: Correction) -> None:
    given = on_policy(llama(), samples())
    plain = gradient(PolicyLoss(), given)
    assert close(gradient(PolicyLoss(correction=mode), given), plain, 1e-5)


def test_weights_within_the_bounds_correct_a_wrong_sampler() -> None:
    """Check E_sampler[w f] = E_policy[f]: a corrected sample has w times its own gradient."""
    (given,) = on_policy(llama(), [sample([1, 2], [5], 1.0)])
    shifted = replace(given, turn=replace(given.turn, logprobs=(given.turn.logprobs[0] - 0.3,)))
    objective = PolicyLoss(ratio="none", clip="none", correction="truncated")
    plain = gradient(replace(objective, correction="none"), [given])
    assert close(gradient(objective, [shifted]), plain * exp(0.3), 1e-5)


def test_with_a_correction_the_clip_starts_from_the_learners_weights() -> None:
    """Check a sampler that differs so much that only a correction avoids clipping at once."""
    (given,) = on_policy(llama(), [sample([1, 2], [5, 6], 1.0)])
    off = tuple(value - 1.0 for value in given.turn.logprobs)
    stale = replace(given, turn=replace(given.turn, logprobs=off))
    model = llama()
    assert not torch.any(gradient(PolicyLoss(), [stale], model=model))
    found = gradient(PolicyLoss(correction="truncated"), [stale], model=llama())
    assert close(found, 2.0 * gradient(PolicyLoss(), [given]), 1e-5)


def test_the_mismatch_is_measured_without_a_correction_too() -> None:
    """Check k3 of the sampler's tokens in a batch's first step, in nats per token."""
    given = on_policy(llama(), samples())
    shifts = [0.3, -0.2, 0.1, 0.5, 0.05]
    stale = [
        replace(s, turn=replace(s.turn, logprobs=tuple(v - shift for v in s.turn.logprobs)))
        for s, shift in zip(given, shifts, strict=True)
    ]
    computed = [(s, shift) for s, shift in zip(stale, shifts, strict=True) if s.advantage != 0.0]
    counts = [sum(s.turn.loss_mask) for s, _ in computed]
    sums = [n * (exp(d) - 1 - d) for n, (_, d) in zip(counts, computed, strict=True)]
    wanted = sum(sums) / sum(counts)
    for objective in (PolicyLoss(), PolicyLoss(ratio="none", clip="none")):
        found = Learner(llama(), objective=objective, settings=LearnerSettings(lr=0.0)).update(
            stale, step=1
        )
        assert found["mismatch_kl"] == pytest.approx(wanted, rel=1e-4)
    # With a correction all samples count, also those without a gradient.
    every = sum(sum(s.turn.loss_mask) for s in stale)
    both = [sum(s.turn.loss_mask) * (exp(d) - 1 - d) for s, d in zip(stale, shifts, strict=True)]
    found = Learner(
        llama(), objective=PolicyLoss(correction="truncated"), settings=LearnerSettings(lr=0.0)
    ).update(stale, step=1)
    assert found["mismatch_kl"] == pytest.approx(sum(both) / every, rel=1e-4)


def test_the_mismatch_is_of_the_first_mini_batch_alone() -> None:
    """Check several mini-batches; after the first the weights have changed without a mismatch."""
    given = on_policy(llama(), samples() * 4)
    metrics = Learner(
        llama(), objective=PolicyLoss(), settings=LearnerSettings(lr=1e-2, mini_batches=4)
    ).update(given, step=1)
    assert abs(metrics["mismatch_kl"]) < 1e-9 < 1e-4 < metrics["policy_kl"]


@pytest.mark.parametrize("mode", ["truncated", "masked"])
@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_a_token_without_a_probability_has_no_weight(mode: Correction, broken: float) -> None:
    one = sample([1], [5, 6], 1.0, logprobs=(-1.0, broken))
    message = f"sample 1.0.0/0/solver_0: the sampler gave token 1 .* {broken}"
    with pytest.raises(DivergedError, match=message):
        correct([one], [[-1.0, -1.0]], mode=mode, low=0.5, high=2.0)
    fine = replace(one, turn=replace(one.turn, logprobs=(-1.0, -1.0)))
    with pytest.raises(DivergedError, match="the learner gave token 1"):
        correct([fine], [[-1.0, broken]], mode=mode, low=0.5, high=2.0)
    masked = replace(one, turn=replace(one.turn, loss_mask=(1, 0)))
    (found,), metrics = correct([masked], [[-1.0, 0.0]], mode=mode, low=0.5, high=2.0)
    assert found.advantage == (1.0, 0.0)
    assert metrics == {"mismatch_kl": 0.0, "corrected_share": 0.0}


def test_auto_weighs_samples_unless_their_logprobs_are_exact() -> None:
    auto = PolicyLoss(correction="auto")
    assert auto.resolved(exact=True) == PolicyLoss()
    assert auto.resolved(exact=False) == PolicyLoss(correction="truncated")
    likelihood = PolicyLoss(ratio="none", clip="none", advantage="one", correction="auto")
    assert likelihood.resolved(exact=False).correction == "none", "it has no advantages to weigh"
    masked = PolicyLoss(correction="masked")
    assert masked.resolved(exact=True) is masked
    with pytest.raises(ValueError, match="correction=auto is for runs"):
        auto.prepare([], lambda samples, reference=False: [])
    plain = replace(auto, ratio="none", clip="none")
    assert not plain.off_policy, "older weights need an explicit correction"
    assert likelihood.resolved(exact=False).off_policy, "it learns from samples of any weights"
