"""Tests of the objective against an independent plain formula, term by term, in float64."""

import math
from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
import torch
from torch import Tensor

from selfplay.config.schedule import Schedule
from selfplay.errors import ConfigError
from selfplay.learner.dpo import DPO
from selfplay.learner.logprobs import kl_estimate, read_logits
from selfplay.learner.objective import BatchCounts, LossInputs, PolicyLoss

PRESETS = {
    "grpo": PolicyLoss(aggregate="sequence_mean"),
    "dr_grpo": PolicyLoss(aggregate="constant", length=8),
    "dapo": PolicyLoss(high=0.28, aggregate="token_mean"),
    "reinforce": PolicyLoss(ratio="none", clip="none", aggregate="token_mean"),
    "magrpo": PolicyLoss(ratio="none", clip="none", aggregate="sequence_sum"),
    "rloo": PolicyLoss(ratio="none", clip="none", aggregate="sequence_sum"),
    "gspo": PolicyLoss(ratio="sequence", low=0.1, high=0.15, aggregate="sequence_mean"),
    "ppo": PolicyLoss(clip="dual", dual=1.4, aggregate="token_mean"),
    "cispo": PolicyLoss(clip="cispo", low=1.0, high=0.1, aggregate="token_mean"),
    "sft": PolicyLoss(ratio="none", clip="none", aggregate="token_mean", advantage="one"),
}
LOGPROBS = [[-0.5, -1.0, -2.0, -9.0], [-0.1, -0.7, -1.5, -3.0]]
OLD = [[-1.0, -1.0, -1.0, -1.0], [-0.5, -0.6, -1.6, -1.0]]
ADVANTAGES = [[1.5] * 4, [-0.5] * 4]
"""Advantages of tokens with the ratios 1.65, 1, 0.37, - and 1.49, -, 1.11, 0.14.

The ratios of the two sequences are 0.85 and 0.61.
"""
MASK = [[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0]]
TOTALS = BatchCounts(tokens=6, sequences=2)


def tensor(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def scores(**changes: Tensor | None) -> LossInputs:
    plain = LossInputs(
        logprobs=tensor(LOGPROBS).requires_grad_(),
        old_logprobs=tensor(OLD),
        advantages=tensor(ADVANTAGES),
        mask=tensor(MASK),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def by_hand(
    objective: PolicyLoss, logprobs: list[list[float]], fixed: list[list[float]] = LOGPROBS
) -> float:
    """Return the loss by the papers' formulas in plain Python; `fixed` has no gradient."""
    sequences = []
    for row in (0, 1):
        terms = []
        own = [t for t in range(4) if MASK[row][t]]
        whole = exp(sum(logprobs[row][t] - OLD[row][t] for t in own) / len(own))
        for t in range(4):
            if not MASK[row][t]:
                continue
            a = 1.0 if objective.advantage == "one" else ADVANTAGES[row][t]
            if objective.ratio == "none":
                terms.append(logprobs[row][t] * a)
                continue
            if objective.clip == "cispo":
                weight = min(exp(fixed[row][t] - OLD[row][t]), 1 + objective.high)
                terms.append(weight * a * logprobs[row][t])
                continue
            rho = whole if objective.ratio == "sequence" else exp(logprobs[row][t] - OLD[row][t])
            bounded = min(max(rho, 1 - objective.low), 1 + objective.high)
            term = min(rho * a, bounded * a)
            if objective.clip == "dual" and a < 0:
                term = max(term, objective.dual * a)
            terms.append(term)
        sequences.append(terms)
    if objective.aggregate == "token_mean":
        return -sum(map(sum, sequences)) / sum(map(len, sequences))
    if objective.aggregate == "sequence_mean":
        return -sum(sum(terms) / len(terms) for terms in sequences) / 2
    if objective.aggregate == "sequence_sum":
        return -sum(map(sum, sequences)) / 2
    return -sum(map(sum, sequences)) / (2 * objective.length)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_and_its_gradient_by_hand(name: str) -> None:
    objective, given = PRESETS[name], scores()
    loss, _ = objective.loss(given, TOTALS)
    assert loss.item() == pytest.approx(by_hand(objective, LOGPROBS), abs=1e-12)
    loss.backward()
    assert given.logprobs.grad is not None
    for row in (0, 1):
        for t in range(4):
            moved = [[list(r) for r in LOGPROBS] for _ in (0, 1)]
            moved[0][row][t] += 1e-6
            moved[1][row][t] -= 1e-6
            slope = (by_hand(objective, moved[0]) - by_hand(objective, moved[1])) / 2e-6
            assert float(given.logprobs.grad[row, t]) == pytest.approx(slope, abs=1e-7)
            if not MASK[row][t]:
                assert given.logprobs.grad[row, t] == 0


def test_tokens_are_clipped_and_not_their_turn() -> None:
    """Check a turn of two tokens with the ratio 1.15 and one advantage, as in `algorithm=ppo`.

    The ratio of the turn, 1.3225, would be outside of the clip.
    """
    moved = tensor([[log(1.15), log(1.15)]]).requires_grad_()
    ones, advantages = tensor([[1.0, 1.0]]), tensor([[2.0, 2.0]])
    given = LossInputs(logprobs=moved, old_logprobs=0 * ones, advantages=advantages, mask=ones)
    loss, sums = PRESETS["ppo"].loss(given, BatchCounts(tokens=2, sequences=1))
    assert loss.item() == pytest.approx(-2.3) and sums["clipped"] == 0
    loss.backward()
    assert moved.grad is not None
    assert moved.grad.tolist() == [pytest.approx([-1.15, -1.15])]  # a ratio of turns gives 0


def test_on_policy_the_ratio_of_a_turn_has_the_same_gradient() -> None:
    given = scores(old_logprobs=tensor(LOGPROBS))
    loss, _ = PRESETS["ppo"].loss(given, TOTALS)
    loss.backward()
    turns = tensor(LOGPROBS).requires_grad_()
    ratios = ((turns - tensor(LOGPROBS)) * tensor(MASK)).sum(1).exp()
    (-(ratios * tensor(ADVANTAGES)[:, 0]).sum() / TOTALS.tokens).backward()
    assert given.logprobs.grad is not None and turns.grad is not None
    assert given.logprobs.grad.tolist() == turns.grad.tolist()


@pytest.mark.parametrize(
    ("ratio", "advantage", "active"),
    [(1.5, 1.0, True), (0.5, 1.0, False), (1.5, -1.0, False), (0.5, -1.0, True)],
)
def test_the_clip_stops_only_gradients_beyond_its_bounds(
    ratio: float, advantage: float, active: bool
) -> None:
    logprob = torch.tensor([[log(ratio)]], dtype=torch.float64, requires_grad=True)
    given = LossInputs(
        logprobs=logprob,
        old_logprobs=torch.zeros(1, 1, dtype=torch.float64),
        advantages=torch.full((1, 1), advantage, dtype=torch.float64),
        mask=torch.ones(1, 1, dtype=torch.float64),
    )
    loss, sums = PolicyLoss().loss(given, BatchCounts(tokens=1, sequences=1))
    (gradient,) = torch.autograd.grad(loss, logprob)
    assert sums["clipped"] == active
    assert float(gradient) == pytest.approx(0.0 if active else -ratio * advantage)


def test_clip_higher_leaves_more_room_above() -> None:
    given = scores(logprobs=tensor(OLD) + log(1.25))
    _, narrow = PRESETS["grpo"].loss(given, TOTALS)
    _, wide = PRESETS["dapo"].loss(given, TOTALS)
    assert (narrow["clipped"], wide["clipped"]) == (3, 0)


@pytest.mark.parametrize(
    ("objective", "ratio", "advantage", "clipped"),
    [
        (PRESETS["cispo"], 1.25, 1.0, 6),
        (PRESETS["cispo"], 1.25, -1.0, 6),
        (PRESETS["ppo"], 2.0, -1.0, 6),
        (PolicyLoss(clip="ppo"), 2.0, -1.0, 0),
    ],
    ids=["cispo", "cispo_down", "dual", "ppo"],
)
def test_the_tokens_that_a_clip_bounds_are_counted(
    objective: PolicyLoss, ratio: float, advantage: float, clipped: int
) -> None:
    given = scores(logprobs=tensor(OLD) + log(ratio), advantages=tensor([[advantage] * 4] * 2))
    assert objective.loss(given, TOTALS)[1]["clipped"] == clipped


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_a_row_without_own_tokens_adds_nothing(ratio: Any) -> None:
    """Check the row that an idle rank computes; NaN would skip the step on all ranks."""
    objective = PolicyLoss(ratio=ratio, aggregate="sequence_mean")
    totals = BatchCounts(tokens=3, sequences=1)
    alone = scores(
        logprobs=tensor(LOGPROBS[:1]),
        old_logprobs=tensor(OLD[:1]),
        advantages=tensor(ADVANTAGES[:1]),
        mask=tensor(MASK[:1]),
    )
    both = scores(mask=tensor([MASK[0], [0.0] * 4]))
    assert objective.loss(both, totals)[0].item() == objective.loss(alone, totals)[0].item() != 0


def test_differences_of_log_probabilities_are_bounded_by_20() -> None:
    one = tensor([[1.0]])
    given = LossInputs(logprobs=0 * one, old_logprobs=-100 * one, advantages=one, mask=one)
    loss, sums = PolicyLoss(clip="none").loss(given, BatchCounts(tokens=1, sequences=1))
    assert loss.item() == pytest.approx(-exp(20))
    assert sums["policy_kl"] == pytest.approx(exp(20) - 21)
    assert kl_estimate(-100 * one, 0 * one, "k3").item() == pytest.approx(exp(20) - 21)


def test_the_policy_kl_is_a_sum_over_own_tokens() -> None:
    moved = [LOGPROBS[r][t] - OLD[r][t] for r in (0, 1) for t in range(4) if MASK[r][t]]
    sums = PRESETS["grpo"].loss(scores(), TOTALS)[1]
    assert sums["policy_kl"] == pytest.approx(sum(exp(d) - 1 - d for d in moved))


def test_the_golden_aggregates() -> None:
    mask = tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    values = tensor([[1, 1, 9, 9], [2, 2, 2, 2]])
    given = scores(logprobs=-values, mask=mask, advantages=torch.ones_like(mask))
    found = {}
    for aggregate in ("token_mean", "sequence_mean", "sequence_sum", "constant"):
        objective = PolicyLoss(ratio="none", clip="none", aggregate=aggregate, length=8)
        found[aggregate] = float(objective.loss(given, TOTALS)[0])
    wanted = {"token_mean": 5 / 3, "sequence_mean": 1.5, "sequence_sum": 5.0, "constant": 0.625}
    assert found == pytest.approx(wanted, abs=1e-12)


def test_the_golden_kl_estimates() -> None:
    p, q = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.9, 0.1]).double()
    k1, k2, k3 = (kl_estimate(p.log(), q.log(), name) for name in ("k1", "k2", "k3"))
    assert k1.tolist() == pytest.approx([-0.5877867, 1.6094379], abs=1e-7)
    assert k2.tolist() == pytest.approx([0.1727466, 1.2951452], abs=1e-7)
    assert k3.tolist() == pytest.approx([0.2122133, 0.8094379], abs=1e-7)
    means = [float(k.mean()) for k in (k1, k2, k3)]
    assert means == pytest.approx([0.5108256, 0.7339459, 0.5108256], abs=1e-7)


def test_the_gradients_of_the_kl_estimates_in_expectation() -> None:
    """Check that as a loss k2 has the KL's own gradient, k1 none, k3 that of the opposite KL."""
    logits = torch.tensor([0.3, -0.4, 1.0], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    logp = logits.log_softmax(0)
    p = logp.exp().detach()
    (exact,) = torch.autograd.grad((logp.exp() * (logp - q.log())).sum(), logits, retain_graph=True)
    forward = p - q  # the gradient of KL(q, p)
    wanted = {"k1": torch.zeros(3).double(), "k2": exact, "k3": forward}
    for name, gradient in wanted.items():
        expected = (p * kl_estimate(logp, q.log(), name)).sum()  # type: ignore[arg-type]
        (found,) = torch.autograd.grad(expected, logits, retain_graph=True)
        assert found.tolist() == pytest.approx(gradient.tolist(), abs=1e-12), name


@pytest.mark.parametrize(("estimator", "divergence"), [("exact", 1.0), ("forward", 0.0)])
def test_the_gradient_of_a_kl_over_the_vocabulary(estimator: Any, divergence: Any) -> None:
    """Check the gradients: the expectation of k2's for exact, pi - reference for forward."""
    logits = torch.tensor([[0.3, -0.4, -18.0]], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    found = read_logits(
        logits,
        torch.tensor([0]),
        None,
        entropy=False,
        reference=q.log(),
        divergence=divergence,
    )
    one = torch.ones(1, 1, dtype=torch.float64)
    assert found.kl is not None
    given = LossInputs(
        logprobs=found.logprobs[:, None].detach(),
        old_logprobs=0 * one,
        advantages=0 * one,
        mask=one,
        kl=found.kl[:, None],
    )
    objective = PolicyLoss(ratio="none", clip="none", kl=0.5, estimator=estimator)
    assert objective.divergence == divergence
    loss, sums = objective.loss(given, BatchCounts(tokens=1, sequences=1))
    (gradient,) = torch.autograd.grad(loss, logits)
    logp = logits.detach().log_softmax(1)
    p = logp.exp()
    nats = (p * (logp - q.log())).sum() if estimator == "exact" else (q * (q.log() - logp)).sum()
    wanted = p - q if estimator == "forward" else p * (logp - q.log() - nats)
    assert sums["reference_kl"] == pytest.approx(float(nats))
    assert gradient.tolist()[0] == pytest.approx((0.5 * wanted).tolist()[0], abs=1e-12)
    rare = abs(float(gradient[0, 2]))  # of a token with the probability 1e-8
    assert rare < 1e-6 if estimator == "exact" else rare == pytest.approx(0.15, abs=1e-6)
    with pytest.raises(ValueError, match="needs the KL over the vocabulary"):
        objective.loss(replace(given, kl=None), BatchCounts(tokens=1, sequences=1))


def test_only_a_kl_term_asks_for_a_divergence() -> None:
    assert PolicyLoss(estimator="exact").divergence is None
    assert PolicyLoss(kl=1.0).divergence is None


def test_on_the_sampling_policy_the_ratio_has_reinforces_gradient() -> None:
    gradients = []
    for name in ("dapo", "reinforce"):
        given = scores(old_logprobs=tensor(LOGPROBS))
        loss, _ = PRESETS[name].loss(given, TOTALS)
        gradients.append(torch.autograd.grad(loss, given.logprobs)[0])
    assert torch.allclose(gradients[0], gradients[1], atol=1e-15)


def test_the_kl_term_and_the_entropy_bonus_enter_with_their_weights() -> None:
    reference, entropy = tensor(OLD), tensor(LOGPROBS).neg()
    plain, _ = PRESETS["reinforce"].loss(scores(), TOTALS)
    objective = replace(PRESETS["reinforce"], kl=0.1, estimator="k1", entropy=0.01)
    given = scores(reference_logprobs=reference, entropy=entropy)
    loss, sums = objective.loss(given, TOTALS)
    mask = tensor(MASK)
    kl = float(((tensor(LOGPROBS) - reference) * mask).sum())
    assert (loss - plain).item() == pytest.approx(
        (0.1 * kl - 0.01 * float((entropy * mask).sum())) / 6, abs=1e-12
    )
    assert sums["reference_kl"] == pytest.approx(kl)
    for missing in ({"reference_logprobs": None}, {"entropy": None}):
        with pytest.raises(ValueError, match="needs"):
            objective.loss(replace(given, **missing), TOTALS)  # type: ignore[arg-type]


def test_an_entropy_bonus_with_a_schedule_has_the_weight_of_the_step() -> None:
    falling = Schedule(steps=(0, 100), values=(0.3, 0.1))
    objective = replace(PRESETS["reinforce"], entropy=falling)
    given = scores(entropy=tensor(LOGPROBS).neg())
    for step, weight in ((0, 0.3), (25, 0.25), (100, 0.1), (500, 0.1)):
        loss, _ = objective.at(step).loss(given, TOTALS)
        same, _ = replace(objective, entropy=weight).loss(given, TOTALS)
        assert loss.item() == pytest.approx(same.item(), abs=1e-15)
    with pytest.raises(ValueError, match="choose a step"):
        objective.loss(given, TOTALS)
    assert not objective.linear_in_advantage
    constant = replace(objective, entropy=0.1)
    assert constant.at(7) is constant


def test_scheduled_kl_and_entropy_weights_depend_on_the_step() -> None:
    rising = Schedule(steps=(10, 30), values=(0.0, 0.8))
    falling = Schedule(steps=(0, 40), values=(0.4, 0.0))
    objective = replace(PRESETS["reinforce"], kl=rising, estimator="k1", entropy=falling)
    plain, _ = PRESETS["reinforce"].loss(scores(), TOTALS)
    entropy = tensor([[2.0, 1.0, 3.0, 9.0], [1.0, 9.0, 2.0, 3.0]])  # 12 nats on 6 own tokens
    given = scores(reference_logprobs=tensor(OLD), entropy=entropy)
    # The own tokens differ from the reference by 0.5, 0, -1, 0.4, 0.1 and -2 nats.
    for step, kl, bonus in (
        (0, 0.0, 0.4),
        (10, 0.0, 0.3),
        (15, 0.2, 0.25),
        (20, 0.4, 0.2),
        (30, 0.8, 0.1),
        (40, 0.8, 0.0),
        (99, 0.8, 0.0),
    ):
        loss, sums = objective.at(step).loss(given, TOTALS)
        assert (loss - plain).item() == pytest.approx((kl * -2 - bonus * 12) / 6, abs=1e-12)
        assert ("reference_kl" in sums) == (kl > 0)
    with pytest.raises(ValueError, match="choose a step"):
        replace(objective, entropy=0.0).loss(given, TOTALS)


def test_a_reference_is_kept_if_some_step_reads_it() -> None:
    later = Schedule(steps=(5, 9), values=(0.0, 0.1))
    never = Schedule(steps=(5, 9), values=(0.0, 0.0))
    objective = PolicyLoss(kl=later, estimator="exact")
    assert objective.reads_reference and objective.divergence == 1
    assert not objective.linear_in_advantage
    start, end = objective.at(5), objective.at(9)
    assert start.divergence is None and start.linear_in_advantage
    assert end.divergence == 1 and not end.linear_in_advantage
    without = PolicyLoss(kl=never, entropy=never)
    assert not without.reads_reference and without.linear_in_advantage


@pytest.mark.parametrize("name", ["kl", "entropy"])
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_schedule_of_a_weight_must_be_finite(name: str, broken: float) -> None:
    wrong: Any = {name: Schedule(steps=(0, 100), values=(0.3, broken))}
    with pytest.raises(ValueError, match=f"{name} must be a finite number, not {broken}"):
        PolicyLoss(**wrong)


def test_an_objective_with_other_terms_is_not_linear_in_advantage() -> None:
    assert PRESETS["grpo"].linear_in_advantage
    for changes in ({"kl": 0.1}, {"entropy": 0.1}, {"advantage": "one"}):
        assert not replace(PRESETS["grpo"], **changes).linear_in_advantage


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregate": "constant", "length": 0}, "length >= 1"),
        ({"low": -0.1}, "must not be negative"),
        ({"kl": -1.0}, "must not be negative"),
        ({"kl": Schedule(steps=(1, 5, 9), values=(1.0, -0.1, 1.0))}, "kl must not be negative"),
        ({"ratio": "none"}, "needs a ratio"),
        ({"ratio": "none", "clip": "cispo"}, "clip=cispo needs a ratio"),
        ({"clip": "dual", "dual": 1.1}, r"above 1 \+ high"),
        ({"ema_rate": 0.0}, "ema_rate"),
        ({"weight_high": 0.5}, "weight_low"),
        ({"correction": "masked", "advantage": "one"}, "weighs advantages"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PolicyLoss(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name",
    ["low", "high", "dual", "kl", "ema_rate", "entropy", "weight_low", "weight_high"],
)
def test_numbers_of_an_objective_are_finite(name: str, broken: float) -> None:
    given: Any = {name: broken}
    with pytest.raises(ValueError, match=f"{name} must be a finite number, not {broken}"):
        PolicyLoss(**given)


@pytest.mark.parametrize("name", ["beta", "smoothing"])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_numbers_of_dpo_are_finite(name: str, broken: float) -> None:
    given: Any = {name: broken}
    with pytest.raises(ValueError, match="objective: beta must be finite and above 0"):
        DPO(**given)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda surrogate, bounded: surrogate, "a tensor of float64 [2, 4]"),
        (
            lambda surrogate, bounded: (surrogate.mean(), bounded),
            "tuple of a tensor of float64 [], a tensor of bool [2, 4]",
        ),
        (
            lambda surrogate, bounded: (surrogate.mean(0), bounded),
            "tuple of a tensor of float64 [4], a tensor of bool [2, 4]",
        ),
        (
            lambda surrogate, bounded: (surrogate, bounded.any(1, keepdim=True)),
            "a tensor of float64 [2, 4], a tensor of bool [2, 1]",
        ),
        (lambda surrogate, bounded: (surrogate, bounded * 1.0), "a tensor of float32 [2, 4]"),
        (lambda surrogate, bounded: (surrogate, None), "a tensor of float64 [2, 4], NoneType"),
    ],
)
def test_a_clip_of_other_shapes_is_refused(change: Any, words: str) -> None:
    class Own(PolicyLoss):
        def clipped(self, *given: Any) -> Any:
            return change(*super().clipped(*given))

    with pytest.raises(ConfigError, match=r"^objective: Own\.clipped returned ") as caught:
        Own().loss(scores(), TOTALS)
    assert f"{words}, not two tensors of [2, 4]: the surrogate of each token" in str(caught.value)
