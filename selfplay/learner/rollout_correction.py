"""Importance weights for a sampler whose probabilities differ from the learner's."""

import math
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from typing import Literal, TypeAlias

from selfplay.errors import DivergedError
from selfplay.learner.batch import named
from selfplay.types import Sample

Correction: TypeAlias = Literal["none", "auto", "truncated", "masked"]
"""See `objective.PolicyLoss.correction`."""


def correct(
    samples: Sequence[Sample],
    present: Sequence[Sequence[float]],
    *,
    mode: Correction,
    low: float,
    high: float,
) -> tuple[list[Sample], dict[str, float]]:
    """Return the samples with importance-weighted advantages and the learner's log-probabilities,
    and metrics.

    w = p_learner / p_sampled per token. truncated: min(w, high) (TIS). masked: w within [low,
    high], else 0 (IcePop). The ratio of the objective then starts at 1, so that its clip bounds
    only the updates, and the weights alone carry the mismatch. Every term of the surrogate is
    proportional to the advantage, so the weight is multiplied into it. A token without loss gets
    the weight 0.

    Args:
        samples: Samples with the sampler's log-probabilities.
        present: [S, C] nats under the learner's weights before the first step.
        mode: truncated or masked.
        low: Smallest weight that a mask lets pass.
        high: Largest weight.
    Raises:
        DivergedError: If one of the two log-probabilities of a trainable token is not finite,
            because such a token has no weight.
    """
    corrected, cut, tokens = [], 0, 0
    for sample, now in zip(samples, present, strict=True):
        turn, weights = sample.turn, list[float | None]()
        check_logprobs_known(sample, turn.logprobs, whose="sampler")
        check_logprobs_known(sample, now, whose="learner")
        for logprob, sampled, counts in zip(now, turn.logprobs, turn.loss_mask, strict=True):
            if not counts:
                weights.append(None)
                continue
            weight = exp(_difference(logprob, sampled))
            within = weight <= high and (mode == "truncated" or weight >= low)
            weights.append(weight if within else high if mode == "truncated" else 0.0)
            tokens, cut = tokens + 1, cut + (not within)
        advantage = sample.advantage
        own = advantage if isinstance(advantage, tuple) else (advantage,) * len(weights)
        corrected.append(
            replace(
                sample,
                turn=replace(turn, logprobs=tuple(now)),
                advantage=tuple(
                    0.0 if w is None else a * w for a, w in zip(own, weights, strict=True)
                ),
            )
        )
    metrics = {"mismatch_kl": mismatch(samples, present), "corrected_share": cut / max(tokens, 1)}
    return corrected, metrics


def mismatch(samples: Sequence[Sample], present: Sequence[Sequence[float]]) -> float:
    """Return an estimate of KL(sampler, learner) in nats per token that the policy chose.

    The estimate is k3 = r - 1 - log r with r = p_learner / p_sampled. It is never negative, and has
    less variance than -log r.
    """
    differences = [
        _difference(logprob, sampled)
        for sample, now in zip(samples, present, strict=True)
        for logprob, sampled, counts in zip(
            now, sample.turn.logprobs, sample.turn.loss_mask, strict=True
        )
        if counts
    ]
    return sum(exp(d) - 1 - d for d in differences) / max(len(differences), 1)


def check_logprobs_known(sample: Sample, logprobs: Sequence[float], *, whose: str) -> None:
    """Raise DivergedError, naming the turn, if a trainable token's log-probability is not finite.

    Args:
        sample: The sample with the turn.
        logprobs: [C] nats.
        whose: Source of the log-probabilities (sampler or learner), for the error.
    """
    for index, (value, counts) in enumerate(zip(logprobs, sample.turn.loss_mask, strict=False)):
        if counts and not math.isfinite(value):
            raise DivergedError(
                f"{named(sample)}: the {whose} gave token {index} of the completion the "
                f"log-probability {value}; the weights are broken: resume from an earlier "
                "checkpoint with a lower learning rate, or choose another engine"
            )


def _difference(logprob: float, sampled: float) -> float:
    return max(-20.0, min(20.0, logprob - sampled))
