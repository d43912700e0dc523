"""Direct preference optimisation: learns from pairs of completions or of whole traces."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log1p
from typing import ClassVar, Literal

from torch import Tensor

from selfplay.errors import ConfigError
from selfplay.learner.objective import BatchCounts, LossInputs, Score
from selfplay.learner.rollout_correction import mismatch
from selfplay.types import Sample


@dataclass(frozen=True, kw_only=True)
class DPO:
    """Minimises -log sigmoid(m), m = beta (log-ratio of the better - of the worse) (2305.18290).

    A log-ratio is the sum over a completion's tokens of log pi - log pi_reference. The gradient of
    a pair is -beta sigmoid(-m) times that of (log pi of the better - log pi of the worse), so one
    pass without gradients computes the weight of every completion, and the completions of a pair
    need not share a micro-batch. The learner's metric `loss` is therefore the negative weighted
    log-probability; `preference_loss` is the loss of DPO.

    Samples come in pairs (`Sample.pair`), as `credit=preference` and `credit=majority` make them:
    advantage above 0 for the better side, below 0 for the worse. A side is one completion, or all
    completions of a trace, whose log-ratios add up. A pair with trainable tokens on only one side
    is left out, because it has no margin; `preference_left_out` counts it.
    """

    beta: float = 0.1
    """Strength of the pull to the reference: with a smaller value the policy moves farther from
    it."""
    smoothing: float = 0.0
    """Fraction of the pairs that are assumed to have swapped labels."""

    # Constants of the protocol `Objective`.
    reference: ClassVar[Literal["initial"]] = "initial"
    ema_rate: ClassVar[float] = 0.0
    kl: ClassVar[float] = 0.0
    divergence: ClassVar[None] = None
    entropy: ClassVar[float] = 0.0
    linear_in_advantage: ClassVar[bool] = True
    reads_reference: ClassVar[bool] = True
    one_step: ClassVar[bool] = True
    off_policy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.beta < inf or not 0 <= self.smoothing < 0.5:
            raise ValueError(
                "objective: beta must be finite and above 0, smoothing at least 0 and below 0.5"
            )

    def at(self, step: int) -> "DPO":
        """Return itself: nothing changes with the step."""
        return self

    def prepare(
        self, samples: Sequence[Sample], score: Score
    ) -> tuple[list[Sample], dict[str, float]]:
        """Return the samples of whole pairs with their weights as advantages, and metrics of the
        pairs.

        `samples` are those with trainable tokens. Raises ConfigError for a sample without a pair.
        """
        if any(not sample.pair for sample in samples):
            raise ConfigError("objective=dpo learns from pairs; set credit=preference")
        sides: dict[str, set[int]] = {}
        for sample in samples:
            sides.setdefault(sample.pair, set()).add(_sign(sample))
        left_out = sum(len(signs) == 1 for signs in sides.values())
        samples = [sample for sample in samples if len(sides[sample.pair]) == 2]
        pairs: dict[str, list[int]] = {}
        for index, sample in enumerate(samples):
            pairs.setdefault(sample.pair, []).append(index)
        present, reference = score(samples), score(samples, reference=True)
        weights, losses, margins = [0.0] * len(samples), 0.0, []
        # `loss` divides by half of the samples: the number of pairs, if both sides have one.
        scale = len(samples) / max(2 * len(pairs), 1)
        for members in pairs.values():
            ratios = {1: 0.0, -1: 0.0}
            for i in members:
                ratio = _total(samples[i], present[i]) - _total(samples[i], reference[i])
                ratios[_sign(samples[i])] += ratio
            margin = self.beta * (ratios[1] - ratios[-1])
            pull = (1 - self.smoothing) * _sigmoid(-margin) - self.smoothing * _sigmoid(margin)
            for i in members:
                weights[i] = _sign(samples[i]) * self.beta * pull * scale
            right, wrong = _softplus(-margin), _softplus(margin)
            losses += (1 - self.smoothing) * right + self.smoothing * wrong
            margins.append(margin)
        count = max(len(margins), 1)
        return [replace(s, advantage=w) for s, w in zip(samples, weights, strict=True)], {
            "mismatch_kl": mismatch(samples, present),
            "preference_loss": losses / count,
            "preference_margin": sum(margins) / count,
            "preference_accuracy": sum(margin > 0 for margin in margins) / count,
            "preference_left_out": float(left_out),
        }

    def loss(self, scores: LossInputs, totals: BatchCounts) -> tuple[Tensor, dict[str, float]]:
        """Return the micro-batch's part of the mean over pairs, and sums of diagnostics."""
        weighted = (scores.logprobs * scores.advantages * scores.mask).sum()
        surprisal = float((-scores.logprobs.detach() * scores.mask).sum())
        return -weighted * 2 / totals.sequences, {"surprisal": surprisal}


def _sign(sample: Sample) -> int:
    advantage = sample.advantage
    if isinstance(advantage, tuple) or not advantage:
        raise ValueError(f"a sample of pair {sample.pair!r} is neither the better nor the worse")
    return 1 if advantage > 0 else -1


def _total(sample: Sample, logprobs: Sequence[float]) -> float:
    """Return the sum of the log-probabilities of the tokens that the policy itself chose."""
    return sum(value for value, own in zip(logprobs, sample.turn.loss_mask, strict=True) if own)


def _sigmoid(value: float) -> float:
    return 1 / (1 + exp(-value)) if value >= 0 else exp(value) / (1 + exp(value))


def _softplus(value: float) -> float:
    return max(value, 0.0) + log1p(exp(-abs(value)))
