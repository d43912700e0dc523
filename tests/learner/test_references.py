"""Tests of the learner's reference models and EMAs, and of preference pairs."""

import io
from dataclasses import replace
from math import exp, log1p

import pytest
import torch

from selfplay.errors import ConfigError
from selfplay.learner.dpo import DPO
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.types import Sample
from tests.helpers.builders import llama, same, sample, weights
from tests.helpers.gradients import REINFORCE, close, gradient, logprobs, on_policy, samples


def test_the_ema_follows_the_policy_and_is_kept_in_a_checkpoint() -> None:
    model, reference, start = llama(), llama(), weights(llama())
    objective = PolicyLoss(kl=0.1, reference="ema", ema_rate=0.25)
    learner = Learner(
        model, objective=objective, reference=reference, settings=LearnerSettings(lr=0.01)
    )
    learner.update(on_policy(model, samples()), step=1)
    for before, now, mean in zip(start, weights(model), weights(reference), strict=True):
        assert torch.allclose(mean, before + 0.25 * (now - before), atol=1e-7)
    kept = io.BytesIO()
    torch.save(learner.state_dict(), kept)
    kept.seek(0)
    fresh = llama()
    other = Learner(
        llama(), objective=objective, reference=fresh, settings=LearnerSettings(lr=0.01)
    )
    other.load_state_dict(torch.load(kept, weights_only=True))
    assert same(weights(fresh), weights(reference))


def test_an_initial_reference_does_not_move() -> None:
    model, reference = llama(), llama()
    learner = Learner(
        model, objective=PolicyLoss(kl=0.1), reference=reference, settings=LearnerSettings(lr=0.01)
    )
    learner.update(on_policy(model, samples()), step=1)
    assert same(weights(reference), weights(llama())) and "ema" not in learner.state_dict()


def test_logprobs_are_the_models_own_in_the_order_given() -> None:
    model = llama()
    learner = Learner(model, objective=REINFORCE, settings=LearnerSettings(max_tokens=12))
    for found, one in zip(learner.logprobs(samples()), samples(), strict=True):
        wanted = logprobs(model, one).tolist()
        assert len(found) == len(wanted)
        own = [t for t, chosen in enumerate(one.turn.loss_mask) if chosen]
        assert [found[t] for t in own] == pytest.approx([wanted[t] for t in own], abs=1e-5)


def test_dpo_has_the_gradient_of_its_loss_for_any_micro_batches() -> None:
    better = sample([1, 2, 3], [5, 6, 7], 1.0, loss_mask=(1, 0, 1))
    worse = sample([1, 2, 3], [4], -1.0)
    pairs = [replace(better, pair="a"), replace(worse, pair="a")]
    pairs += [
        replace(sample([7], [8, 9], 1.0), pair="b"),
        replace(sample([7], [2, 2], -1.0), pair="b"),
    ]
    model, reference = llama(), llama(seed=1)

    def ratio(one: Sample) -> torch.Tensor:
        own = torch.tensor(one.turn.loss_mask)
        return ((logprobs(model, one) - logprobs(reference, one).detach()) * own).sum()

    margins = [0.5 * (ratio(pairs[i]) - ratio(pairs[i + 1])) for i in (0, 2)]
    loss = -torch.stack(margins).sigmoid().log().mean()
    loss.backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    for size in (10_000, 1):
        found = gradient(
            DPO(beta=0.5),
            pairs,
            reference=llama(seed=1),
            max_tokens=size,
        )
        assert close(found, wanted)
    learner = Learner(llama(), objective=DPO(beta=0.5), reference=llama(seed=1))
    metrics = learner.update(pairs, step=1)
    assert metrics["preference_loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert metrics["preference_left_out"] == 0
    for key in ("mini_batches", "epochs"):
        several = replace(LearnerSettings(), **{key: 2})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"set {key}=1"):
            Learner(llama(), objective=DPO(), reference=llama(), settings=several)
    with pytest.raises(ConfigError, match="credit=preference"):
        learner.update(samples(), step=2)


def test_the_loss_of_a_pair_counts_the_wrong_order_with_the_smoothing() -> None:
    """Check completions with the log ratios 1 and 0, whose difference, the margin, is 1."""
    pair = [replace(sample([1], [5], sign), pair="a") for sign in (1.0, -1.0)]
    _, metrics = DPO(beta=1.0, smoothing=0.25).prepare(
        pair, lambda samples, reference=False: [[-2.0 if reference else -1.0], [-1.0]]
    )
    wanted = 0.75 * log1p(exp(-1)) + 0.25 * log1p(exp(1))
    assert metrics["preference_loss"] == pytest.approx(wanted)


def test_the_completions_of_a_trace_count_together() -> None:
    traces = [
        replace(sample([1, 2, 3], [5, 6, 7], 1.0, loss_mask=(1, 0, 1)), pair="a"),
        replace(sample([1, 2, 4, 4], [3], 1.0), pair="a"),
        replace(sample([1, 2, 3], [4], -1.0), pair="a"),
        replace(sample([7], [8, 9], 1.0), pair="b"),
        replace(sample([7], [2, 2], -1.0), pair="b"),
        replace(sample([7, 2, 1], [1, 3], -1.0), pair="b"),
        replace(sample([7, 2, 5], [6], -1.0), pair="b"),
    ]
    model, reference = llama(), llama(seed=1)

    def ratio(one: Sample) -> torch.Tensor:
        own = torch.tensor(one.turn.loss_mask)
        return ((logprobs(model, one) - logprobs(reference, one).detach()) * own).sum()

    r = [ratio(one) for one in traces]
    margins = [0.5 * (r[0] + r[1] - r[2]), 0.5 * (r[3] - r[4] - r[5] - r[6])]
    loss = -torch.stack(margins).sigmoid().log().mean()
    loss.backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    for size in (10_000, 1):
        found = gradient(DPO(beta=0.5), traces, reference=llama(seed=1), max_tokens=size)
        assert close(found, wanted)
    learner = Learner(llama(), objective=DPO(beta=0.5), reference=llama(seed=1))
    metrics = learner.update(traces, step=1)
    assert metrics["preference_loss"] == pytest.approx(float(loss.detach()), abs=1e-5)


def test_a_pair_with_a_masked_completion_is_left_out_and_counted() -> None:
    def pair(name: str, loss_mask: tuple[int, ...] = (1, 1)) -> list[Sample]:
        better = sample([1, 2, 3], [5, 6], 1.0)
        worse = sample([1, 2, 3], [4, 7], -1.0, loss_mask=loss_mask)
        return [replace(better, pair=name), replace(worse, pair=name)]

    def learned(given: list[Sample]) -> tuple[torch.Tensor, dict[str, float]]:
        model = llama()
        learner = Learner(
            model,
            objective=DPO(),
            reference=llama(seed=1),
            settings=LearnerSettings(lr=0.0, clip_norm=1e9),
        )
        metrics = learner.update(given, step=1)
        found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return torch.cat(found) if found else torch.zeros(0), metrics

    whole, _ = learned(pair("a"))
    found, metrics = learned([*pair("a"), *pair("b", loss_mask=(0, 0))])
    assert torch.equal(found, whole)
    assert metrics["preference_left_out"] == 1 and metrics["samples_without_tokens"] == 1
    nothing, metrics = learned(pair("b", loss_mask=(0, 0)))
    assert not len(nothing) and metrics["preference_left_out"] == 1
    assert metrics["preference_loss"] == 0
    found, metrics = learned([*pair("a"), pair("b")[0], pair("b")[0]])
    assert torch.equal(found, whole)
    assert metrics["preference_left_out"] == 1
