"""The policy objective: ratio x clip x aggregate, plus a KL term and an entropy bonus.

Sums over micro-batches are divided by counts of the whole batch, so that the gradient does not
depend on how the batch was cut.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Ratio: TypeAlias = Literal["token", "none"]
Clip: TypeAlias = Literal["ppo", "none"]
Aggregate: TypeAlias = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]
Estimator: TypeAlias = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What the objective sees of a micro-batch: [B] completions padded to [C] tokens."""

    logprobs: Tensor
    """[B, C] nats under the weights being trained; carries the gradient."""
    old_logprobs: Tensor
    """[B, C] nats under the weights that sampled."""
    advantages: Tensor
    """[B, C]."""
    mask: Tensor
    """[B, C] 1.0 on trainable tokens, 0.0 on padding and on tokens that others wrote."""
    reference_logprobs: Tensor | None = None
    """[B, C] nats under the reference policy, where there is a KL term."""
    entropy: Tensor | None = None
    """[B, C] nats, where there is an entropy bonus; carries the gradient."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Counts over the whole batch, of all micro-batches and ranks."""

    tokens: int
    """Trainable tokens."""
    sequences: int
    """Completions with at least one trainable token."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Maximises the surrogate; `loss` returns its negative."""

    ratio: Ratio = "token"
    """token: pi / pi_old per token. none: the log-probability itself (REINFORCE)."""
    clip: Clip = "ppo"
    """ppo: min(rho A, clip(rho, 1 - low, 1 + high) A). none: no bound."""
    low: float = 0.2
    """Lower clip distance."""
    high: float = 0.2
    """Upper clip distance (0.28 in DAPO's clip-higher)."""
    aggregate: Aggregate = "token_mean"
    """token_mean: sum / tokens of the batch (DAPO). sequence_mean: mean of per-sequence means
    (GRPO). sequence_sum: mean of per-sequence sums (REINFORCE, MAGRPO). constant: sum / (sequences
    * length) (Dr. GRPO)."""
    length: int = 1
    """The constant that `constant` divides by, e.g. the completion limit."""
    kl: float = 0.0
    """Weight of the KL to the reference policy."""
    estimator: Estimator = "k3"
    """k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d with d = logp - logp_ref. As a loss, k2 has the
    gradient of the KL itself; k1's is zero in expectation (it only adds noise)."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    advantage: Literal["credit", "one"] = "credit"
    """one: every sample counts as good, which makes the objective maximum likelihood (SFT)."""

    def __post_init__(self) -> None:
        if self.aggregate == "constant" and self.length < 1:
            raise ValueError(f"objective: aggregate=constant needs length >= 1, not {self.length}")
        if self.low < 0 or self.high < 0 or self.kl < 0:
            raise ValueError("objective: low, high and kl are not negative")
        if self.clip == "ppo" and self.ratio == "none":
            raise ValueError("objective: clip=ppo needs a ratio; set ratio=token or clip=none")

    @property
    def linear_in_advantage(self) -> bool:
        """Whether a sample with advantage 0 has no gradient, so that it need not be computed."""
        return self.advantage == "credit" and self.kl == 0 and self.entropy == 0

    def loss(self, scores: Scores, totals: Totals) -> tuple[Tensor, dict[str, float]]:
        """This micro-batch's share of the batch's loss, and sums of diagnostics over its tokens."""
        mask = scores.mask
        advantages = torch.ones_like(mask) if self.advantage == "one" else scores.advantages
        difference = (scores.logprobs - scores.old_logprobs).clamp(-20, 20)
        sums: dict[str, float] = {}
        if self.ratio == "none":
            surrogate = scores.logprobs * advantages
        else:
            rho = difference.exp()
            surrogate = rho * advantages
            if self.clip == "ppo":
                bounded = rho.clamp(1 - self.low, 1 + self.high) * advantages
                clipped = (bounded < surrogate) & (mask > 0)
                sums["clipped"] = float(clipped.sum())
                surrogate = torch.minimum(surrogate, bounded)
        value = surrogate
        if self.kl:
            if scores.reference_logprobs is None:
                raise ValueError("objective: a KL term needs reference log-probabilities")
            divergence = kl_estimate(scores.logprobs, scores.reference_logprobs, self.estimator)
            value = value - self.kl * divergence
            sums["reference_kl"] = float((divergence.detach() * mask).sum())
        if self.entropy:
            if scores.entropy is None:
                raise ValueError("objective: an entropy bonus needs entropies")
            value = value + self.entropy * scores.entropy
        with torch.no_grad():
            # How far the trained weights are from those that sampled (k3 of their KL).
            sums["policy_kl"] = float(((difference.exp() - 1 - difference) * mask).sum())
            sums["surprisal"] = float((-scores.logprobs * mask).sum())
        return -self._aggregate(value, mask, totals), sums

    def _aggregate(self, values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
        per_sequence = (values * mask).sum(1)
        if self.aggregate == "token_mean":
            return per_sequence.sum() / totals.tokens
        if self.aggregate == "sequence_mean":
            return (per_sequence / mask.sum(1).clamp(min=1)).sum() / totals.sequences
        if self.aggregate == "sequence_sum":
            return per_sequence.sum() / totals.sequences
        return per_sequence.sum() / (totals.sequences * self.length)


def kl_estimate(logprobs: Tensor, reference: Tensor, estimator: Estimator) -> Tensor:
    """Per-token estimates of KL(pi, reference) on samples from pi."""
    d = (logprobs - reference).clamp(-20, 20)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d.square() / 2
    return (-d).exp() - 1 + d
