"""Correcting for a sampler whose probabilities are not the learner's."""

import math
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from typing import Literal, Protocol, TypeAlias

from selfplay.errors import DivergedError
from selfplay.learner.batch import named
from selfplay.types import Sample

Correction: TypeAlias = Literal["none", "truncated", "masked"]


class Score(Protocol):
    """What a learner offers to an objective that looks at the samples before the first step."""

    def __call__(self, samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        """[N][C] nats that the present weights, or the reference's, give each completion."""
        ...


def correct(
    samples: Sequence[Sample],
    present: Sequence[Sequence[float]],
    *,
    mode: Correction,
    low: float,
    high: float,
) -> tuple[list[Sample], dict[str, float]]:
    """Samples as if the learner's weights had drawn them, their advantages weighted; with figures.

    w = p_learner / p_sampled per token. truncated: min(w, high) (TIS). masked: w where it lies
    within [low, high], else 0 (IcePop). The ratio of the objective then starts at 1, so that its
    clip bounds what the updates do and the weights carry the mismatch alone. Every term of the
    surrogate is proportional to the advantage, so the weight is folded into it. A token without
    loss gets the weight 0.

    Args:
        samples: With the sampler's log-probabilities.
        present: [N][C] nats under the learner's weights before the first step.
        mode: Which weights.
        low: Least weight that a mask lets pass.
        high: Largest weight.
    Raises:
        DivergedError: If one of the two log-probabilities of a trainable token is not finite: such
            a token has no weight.
    """
    corrected, cut, tokens = [], 0, 0
    for sample, now in zip(samples, present, strict=True):
        turn, weights = sample.turn, list[float | None]()
        refuse_unknown(sample, turn.logprobs, whose="sampler")
        refuse_unknown(sample, now, whose="learner")
        for logprob, sampled, counts in zip(now, turn.logprobs, turn.trainable, strict=True):
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
    figures = {"mismatch_kl": mismatch(samples, present), "corrected_share": cut / max(tokens, 1)}
    return corrected, figures


def mismatch(samples: Sequence[Sample], present: Sequence[Sequence[float]]) -> float:
    """Estimate of KL(sampler, learner) in nats per token that the policy chose.

    It is k3 = r - 1 - log r with r = p_learner / p_sampled: never negative, and of less variance
    than -log r.
    """
    differences = [
        _difference(logprob, sampled)
        for sample, now in zip(samples, present, strict=True)
        for logprob, sampled, counts in zip(
            now, sample.turn.logprobs, sample.turn.trainable, strict=True
        )
        if counts
    ]
    return sum(exp(d) - 1 - d for d in differences) / max(len(differences), 1)


def refuse_unknown(sample: Sample, logprobs: Sequence[float], *, whose: str) -> None:
    """Raise DivergedError, naming the turn, if a trainable token's log-probability is not finite.

    Args:
        sample: The sample with the turn.
        logprobs: [C] nats.
        whose: Source of the log-probabilities (sampler or learner), for the error.
    """
    for place, (value, counts) in enumerate(zip(logprobs, sample.turn.trainable, strict=False)):
        if counts and not math.isfinite(value):
            raise DivergedError(
                f"{named(sample)}: the {whose} gave token {place} of the completion the "
                f"log-probability {value}; the weights are broken: resume from an earlier "
                "checkpoint with a lower learning rate, or choose another engine"
            )


def _difference(logprob: float, sampled: float) -> float:
    return max(-20.0, min(20.0, logprob - sampled))
