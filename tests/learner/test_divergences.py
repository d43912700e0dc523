"""Tests of the generalised Jensen-Shannon divergence of policy and reference."""

import math

import pytest
import torch

from selfplay.learner.logprobs import read_logits
from selfplay.learner.objective import PolicyLoss


def test_the_jensen_shannon_divergence_by_hand_and_its_limits() -> None:
    """Check pi = (1/2, 1/2), reference = (1, 0) and β = 1/4; the mixture is (5/8, 3/8)."""
    logits = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[0.0, -800.0]], dtype=torch.float64)

    def nats(beta: float) -> torch.Tensor:
        found = read_logits(
            logits,
            torch.tensor([0]),
            None,
            entropy=False,
            reference=reference,
            divergence=beta,
        )
        assert found.kl is not None
        return found.kl.sum()

    wanted = math.log(8 / 5) / 4 + 3 / 4 * (math.log(4 / 5) + math.log(4 / 3)) / 2
    found = nats(0.25)
    assert found.item() == pytest.approx(wanted, abs=1e-12)
    (gradient,) = torch.autograd.grad(found, logits)
    # The divergence is β log(1 / m) + (1 - β) (p log(p/m) + (1-p) log((1-p)/(1-m))) with
    # m = β + (1 - β) p. The derivatives of m cancel, so its derivative by p is
    # (1 - β) (log(p/m) - log((1-p)/(1-m))). It is multiplied by dp/dlogit = 1/4.
    pull = 3 / 4 * (math.log(4 / 5) - math.log(4 / 3)) / 4
    assert gradient.tolist()[0] == pytest.approx([pull, -pull], abs=1e-12)
    assert nats(1e-6).item() / 1e-6 == pytest.approx(nats(0.0).item(), rel=1e-5)
    assert (
        nats(0.5).item() <= math.log(2) < 300 < nats(1.0).item()
    )  # the mixture bounds the divergence


def test_the_jsd_weight_is_between_its_limits() -> None:
    for beta in (0.0, 1.0):
        with pytest.raises(ValueError, match="jsd_beta must be above 0 and below 1"):
            PolicyLoss(kl=1.0, estimator="jsd", jsd_beta=beta)
    assert PolicyLoss(kl=1.0, estimator="jsd", jsd_beta=0.3).divergence == 0.3
