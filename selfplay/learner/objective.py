"""The policy objective.

It has a ratio, a rule that clips the ratio, an aggregate, a KL term and an entropy bonus.

Sums over micro-batches are divided by counts over the whole optimizer step, so that the gradient
does not depend on the division into micro-batches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from selfplay.config.schedule import Schedule, value_at, values_of
from selfplay.learner.logprobs import FORWARD, REVERSE, Divergence, kl_estimate
from selfplay.learner.rollout_correction import Correction, correct
from selfplay.learner.surrogate import check_surrogate
from selfplay.types import Sample


class Score(Protocol):
    """Function of a learner that scores samples, for an objective that reads them before the first
    step."""

    def __call__(self, samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        """Return [S, C] nats of each completion under the present weights, or under the
        reference."""
        ...


ReferenceKind: TypeAlias = Literal["initial", "ema", "teacher"]
"""See `PolicyLoss.reference`."""
Ratio: TypeAlias = Literal["token", "sequence", "none"]
Clip: TypeAlias = Literal["ppo", "dual", "cispo", "none"]
Aggregate: TypeAlias = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]
Estimator: TypeAlias = Literal["k1", "k2", "k3", "exact", "forward", "jsd"]
"""See `PolicyLoss.estimator`."""


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """Inputs of the loss for a micro-batch: S samples, whose completions are padded to C tokens.

    `Learner` makes it; `Objective.loss` reads it.
    """

    logprobs: Tensor
    """[S, C] nats under the weights being trained; carries the gradient."""
    old_logprobs: Tensor
    """[S, C] nats under the sampler or, with a correction, under the learner before the first step
    of the batch."""
    advantages: Tensor
    """[S, C] advantages per token."""
    mask: Tensor
    """[S, C] 1.0 on trainable tokens, 0.0 on padding and on tokens that others wrote."""
    reference_logprobs: Tensor | None = None
    """[S, C] nats under the reference policy, if there is a KL term that is estimated from the
    sampled tokens."""
    kl: Tensor | None = None
    """[S, C] nats between the distributions of each token under policy and reference, if the KL
    term sums over the vocabulary; carries the gradient."""
    entropy: Tensor | None = None
    """[S, C] nats, if there is an entropy bonus; carries the gradient."""


@dataclass(frozen=True, kw_only=True)
class BatchCounts:
    """Counts over all samples of an optimizer step, in all micro-batches and on all ranks.

    They are the denominators of the loss.
    """

    tokens: int
    """Number of trainable tokens."""
    sequences: int
    """Number of completions with at least one trainable token."""


class Objective(Protocol):
    """An objective as the learner sees it. Its properties say what the learner must compute for it.

    `PolicyLoss` and `dpo.DPO` implement it; the config group `objective` selects one.
    """

    @property
    def kl(self) -> float | Schedule:
        """Weight of a KL term per token; at steps at which it is above 0, `LossInputs` have the
        reference's log-probabilities, or the KL itself."""
        ...

    @property
    def divergence(self) -> Divergence | None:
        """Kind of the divergence over the whole vocabulary that `LossInputs` have; None if the KL
        term needs only the reference's log-probabilities of the sampled tokens."""
        ...

    @property
    def entropy(self) -> float | Schedule:
        """Weight of an entropy bonus; if it is not 0 at a step, `LossInputs` have entropies."""
        ...

    @property
    def reference(self) -> ReferenceKind:
        """Kind of reference policy."""
        ...

    @property
    def ema_rate(self) -> float:
        """Fraction of the difference to the policy by which the EMA moves per batch."""
        ...

    @property
    def reads_reference(self) -> bool:
        """True if a reference policy must be kept, because some step reads it."""
        ...

    @property
    def linear_in_advantage(self) -> bool:
        """True if a sample with advantage 0 has no gradient at any step, so that it need not be
        computed."""
        ...

    @property
    def one_step(self) -> bool:
        """True if the result of `prepare` is valid for one optimizer step only."""
        ...

    @property
    def off_policy(self) -> bool:
        """True if samples may come from older weights, because they are weighted or their source is
        irrelevant."""
        ...

    def at(self, step: int) -> "Objective":
        """Return the objective of a training step, whose weights are numbers."""
        ...

    def prepare(
        self, samples: Sequence[Sample], score: Score
    ) -> tuple[list[Sample], dict[str, float]]:
        """Return the samples for `loss`, before the first step on them, and metrics."""
        ...

    def loss(self, scores: LossInputs, totals: BatchCounts) -> tuple[Tensor, dict[str, float]]:
        """Return the micro-batch's part of the optimizer step's loss, and sums of diagnostics over
        its tokens."""
        ...


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """Maximises the surrogate; `loss` returns its negative.

    The fields select the objective of a paper: see the config group `objective`.
    """

    ratio: Ratio = "token"
    """token: pi / pi_old per token. sequence: the geometric mean of a completion's token ratios,
    the same for all its tokens (GSPO, 2507.18071). none: the log-probability itself (REINFORCE)."""
    clip: Clip = "ppo"
    """ppo: min(rho A, clip(rho, 1 - low, 1 + high) A) (1707.06347). dual: the same, and at least
    `dual` A if A < 0 (1912.09729). cispo: the clipped ratio as a constant weight of the
    log-probability, so that no token loses its gradient (2506.13585). none: no bound."""
    low: float = 0.2
    """Lower clip distance."""
    high: float = 0.2
    """Upper clip distance (0.28 in DAPO's clip-higher)."""
    dual: float = 3.0
    """Bound of the ratio if A < 0, for `clip=dual`."""
    aggregate: Aggregate = "token_mean"
    """token_mean: sum / tokens of the batch (DAPO). sequence_mean: mean of per-sequence means
    (GRPO). sequence_sum: mean of per-sequence sums (REINFORCE, MAGRPO). constant: sum / (sequences
    * length) (Dr. GRPO)."""
    length: int = 1
    """Constant that `aggregate=constant` divides by, e.g. the completion limit."""
    kl: float | Schedule = 0.0
    """Weight of the KL to the reference policy: a number, or a schedule over the training steps.
    The reference is kept, and an EMA moves, also at steps at which the weight is 0."""
    reference: ReferenceKind = "initial"
    """initial: the policy at the beginning of the run. ema: an exponential moving average of the
    policy's weights. teacher: another model (`policy.teacher`), for on-policy distillation.

    With ema, the last iterate of self-play in zero-sum games converges where plain policy gradients
    cycle (magnetic mirror descent, 2206.05825).
    """
    ema_rate: float = 0.02
    """Fraction of the difference to the policy by which the EMA moves per batch."""
    estimator: Estimator = "k3"
    """k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d with d = logp - logp_ref. As a loss, k2 has the
    gradient of the KL itself; k1's gradient is zero in expectation (it only adds noise).

    exact, forward and jsd sum over the vocabulary at each sampled token, so they need no samples of
    other tokens. exact: KL(pi, reference), with the expectation of k2's gradient and less variance
    (2504.10637). forward: KL(reference, pi), whose gradient at a token does not vanish with the
    token's probability, so that a token that is never sampled comes back. jsd: the generalised
    Jensen-Shannon divergence (2306.13649), which is bounded; see `jsd_beta`."""
    jsd_beta: float = 0.5
    """Number b of `estimator=jsd`, above 0 and below 1: b KL(reference, m) + (1 - b) KL(pi, m),
    with the mixture m = b reference + (1 - b) pi."""
    entropy: float | Schedule = 0.0
    """Weight of the entropy bonus: a number, or a schedule over the training steps. In zero-sum
    games a weight that falls keeps rare situations explored at first and lets the policy come near
    an equilibrium at last."""
    advantage: Literal["credit", "one", "none"] = "credit"
    """credit: the advantages of the samples. one: advantage 1 for every sample, which makes the
    objective maximum likelihood (SFT). none: advantage 0, so that the KL to a teacher alone is
    learned from, which is on-policy distillation (2306.13649)."""
    correction: Correction = "none"
    """Importance weights between the engine's probabilities and the learner's, which differ if the
    two compute differently or the weights are stale: see `correct`. auto: truncated for
    engines other than the embedded one, for workers in another type than the policy, for learners
    whose passes are in bfloat16, and for truncated sampling; else none. The run chooses with
    `resolved`; `mismatch_kl` measures the difference."""
    weight_low: float = 0.5
    """Smallest weight that `correction=masked` lets pass."""
    weight_high: float = 2.0
    """Largest weight of a correction."""
    one_step: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            for number in values_of(value):
                if isinstance(number, float) and not math.isfinite(number):
                    raise ValueError(
                        f"objective: {setting.name} must be a finite number, not {number}"
                    )
        if self.aggregate == "constant" and self.length < 1:
            raise ValueError(f"objective: aggregate=constant needs length >= 1, not {self.length}")
        if min(self.low, self.high, *values_of(self.kl)) < 0:
            raise ValueError("objective: low, high and kl must not be negative")
        if self.clip != "none" and self.ratio == "none":
            raise ValueError(
                f"objective: clip={self.clip} needs a ratio; set ratio=token or clip=none"
            )
        if self.clip == "dual" and self.dual <= 1 + self.high:
            raise ValueError(f"objective: dual must be above 1 + high, not {self.dual}")
        if not 0 < self.ema_rate <= 1:
            raise ValueError(
                f"objective: ema_rate must be above 0 and at most 1, not {self.ema_rate}"
            )
        if not 0 <= self.weight_low <= 1 <= self.weight_high:
            raise ValueError(
                "objective: weight_low must be from 0 to 1, and weight_high at least 1"
            )
        if not 0 < self.jsd_beta < 1:
            raise ValueError(
                f"objective: jsd_beta must be above 0 and below 1, not {self.jsd_beta}; "
                "choose estimator=forward for KL(reference, pi), or exact for KL(pi, reference)"
            )
        if self.correction in ("truncated", "masked") and self.advantage != "credit":
            raise ValueError(
                f"objective: a correction weighs advantages, and advantage={self.advantage} has "
                "none; set correction=none"
            )
        if self.advantage == "none" and self.reference != "teacher":
            raise ValueError(
                "objective: advantage=none reads no rewards; set reference=teacher and kl above 0 "
                "(algorithm=distillation sets both)"
            )
        if self.advantage == "none" and self.estimator == "k1":
            raise ValueError(
                "objective: estimator=k1 has no gradient in expectation; choose exact or k2"
            )

    def resolved(self, *, exact: bool) -> "PolicyLoss":
        """Return the objective with `correction=auto` replaced by none or truncated.

        `exact` is True if the log-probabilities of samples are the learner's own. `Experiment`
        calls it once the engine is known.
        """
        if self.correction != "auto":
            return self
        needed = not exact and self.advantage == "credit"
        return replace(self, correction="truncated" if needed else "none")

    def at(self, step: int) -> "PolicyLoss":
        """Return the objective of a training step, whose weights are numbers."""
        if not isinstance(self.kl, Schedule) and not isinstance(self.entropy, Schedule):
            return self
        kl, entropy = value_at(self.kl, step), value_at(self.entropy, step)
        return replace(self, kl=kl, entropy=entropy)

    @property
    def reads_reference(self) -> bool:
        """True if a reference policy must be kept, because some step reads it."""
        return any(values_of(self.kl))

    @property
    def divergence(self) -> Divergence | None:
        """Kind of the divergence over the whole vocabulary, if the KL term is one."""
        if not self.reads_reference:
            return None
        return {"exact": REVERSE, "forward": FORWARD, "jsd": self.jsd_beta}.get(self.estimator)

    @property
    def linear_in_advantage(self) -> bool:
        """True if a sample with advantage 0 has no gradient at any step, so that it need not be
        computed."""
        weights = (*values_of(self.kl), *values_of(self.entropy))
        return self.advantage == "credit" and not any(weights)

    @property
    def needs_present_weights(self) -> bool:
        """True if samples must come from the weights of the optimizer step that learns from them.

        A correction weighs samples once per batch, before its first step. A KL to a teacher over
        the whole vocabulary needs none; one that is estimated from the sampled tokens does.
        """
        rewarded = self.ratio == "none" and self.advantage == "credit"
        return rewarded or (self.advantage == "none" and self.divergence is None)

    @property
    def off_policy(self) -> bool:
        """True if samples may come from older weights.

        A ratio or a correction weights such samples. Maximum likelihood does not depend on their
        source, and neither does a KL to a teacher over the whole vocabulary.
        """
        if self.advantage != "credit":
            return self.advantage == "one" or self.divergence is not None
        return self.ratio != "none" or self.correction in ("truncated", "masked")

    def prepare(
        self, samples: Sequence[Sample], score: Score
    ) -> tuple[list[Sample], dict[str, float]]:
        """Return the samples for `loss`, before the first step on them, and metrics.

        Raises ValueError if `correction=auto` was not `resolved`.
        """
        if self.correction == "auto":
            raise ValueError(
                "objective: correction=auto is for runs; choose none, truncated or masked"
            )
        if self.correction == "none":
            return list(samples), {}
        return correct(
            samples,
            score(samples),
            mode=self.correction,
            low=self.weight_low,
            high=self.weight_high,
        )

    def loss(self, scores: LossInputs, totals: BatchCounts) -> tuple[Tensor, dict[str, float]]:
        """Return the micro-batch's part of the optimizer step's loss, and sums of diagnostics over
        its tokens. Raises ValueError for a schedule: `at` gives the objective of a step."""
        if isinstance(self.kl, Schedule) or isinstance(self.entropy, Schedule):
            raise ValueError("objective: kl or entropy has a schedule; choose a step with at(step)")
        mask = scores.mask
        fixed = {"one": torch.ones_like, "none": torch.zeros_like}.get(self.advantage)
        advantages = scores.advantages if fixed is None else fixed(mask)
        difference = (scores.logprobs - scores.old_logprobs).clamp(-20, 20)
        sums: dict[str, float] = {}
        if self.ratio == "none":
            surrogate = scores.logprobs * advantages
        else:
            found = self.clipped(self._ratio(scores, difference), scores, advantages)
            surrogate, bounded = check_surrogate(found, mask, f"{type(self).__name__}.clipped")
            sums["clipped"] = float((bounded & (mask > 0)).sum())
        value = surrogate
        if self.kl:
            divergence = self._reference_kl(scores)
            value = value - self.kl * divergence
            sums["reference_kl"] = float((divergence.detach() * mask).sum())
        if self.entropy:
            if scores.entropy is None:
                raise ValueError("objective: an entropy bonus needs entropies")
            value = value + self.entropy * scores.entropy
        with torch.no_grad():
            # Distance of the trained weights from those of `old_logprobs` (k3 of their KL).
            sums["policy_kl"] = float(((difference.exp() - 1 - difference) * mask).sum())
            sums["surprisal"] = float((-scores.logprobs * mask).sum())
        return -self._aggregate(value, mask, totals), sums

    def _reference_kl(self, scores: LossInputs) -> Tensor:
        """Return [S, C] nats between policy and reference."""
        if self.estimator == "exact" or self.estimator == "forward" or self.estimator == "jsd":
            if scores.kl is None:
                raise ValueError("objective: this KL term needs the KL over the vocabulary")
            return scores.kl
        if scores.reference_logprobs is None:
            raise ValueError("objective: a KL term needs reference log-probabilities")
        return kl_estimate(scores.logprobs, scores.reference_logprobs, self.estimator)

    def _ratio(self, scores: LossInputs, difference: Tensor) -> Tensor:
        """Return [S, C] pi / pi_old."""
        if self.ratio == "token":
            return difference.exp()
        tokens = scores.mask.sum(1, keepdim=True).clamp(min=1)
        mean = (difference * scores.mask).sum(1, keepdim=True) / tokens
        # The value is the sequence's; the gradient goes to every token's own log-probability.
        return (mean.detach() + scores.logprobs - scores.logprobs.detach()).exp()

    def clipped(self, rho: Tensor, scores: LossInputs, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """Return [S, C] the surrogate that is maximised, and [S, C] True where it was bounded.

        A subclass may replace it. `loss` calls it, adds the KL term and the entropy bonus, and
        aggregates.

        Args:
            rho: [S, C] ratio of the probabilities under the weights being trained and those of
                `LossInputs.old_logprobs`, per token or per completion; carries the gradient.
            scores: The inputs of the loss.
            advantages: [S, C] advantages per token.
        """
        inside = rho.clamp(1 - self.low, 1 + self.high)
        if self.clip == "cispo":
            return inside.detach() * advantages * scores.logprobs, inside != rho
        surrogate, bounded = rho * advantages, inside * advantages
        if self.clip == "none":
            return surrogate, torch.zeros_like(rho, dtype=torch.bool)
        where = bounded < surrogate
        surrogate = torch.minimum(surrogate, bounded)
        if self.clip == "dual":
            least = self.dual * advantages
            where = where | ((advantages < 0) & (surrogate < least))
            surrogate = torch.where(advantages < 0, torch.maximum(surrogate, least), surrogate)
        return surrogate, where

    def _aggregate(self, values: Tensor, mask: Tensor, totals: BatchCounts) -> Tensor:
        per_sequence = (values * mask).sum(1)
        if self.aggregate == "token_mean":
            return per_sequence.sum() / totals.tokens
        if self.aggregate == "sequence_mean":
            return (per_sequence / mask.sum(1).clamp(min=1)).sum() / totals.sequences
        if self.aggregate == "sequence_sum":
            return per_sequence.sum() / totals.sequences
        return per_sequence.sum() / (totals.sequences * self.length)
