"""An update: one pass over the samples of a batch, wherever its optimizer steps are computed."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random

from selfplay.errors import ConfigError
from selfplay.learner.batch import computed, named, trainable_tokens
from selfplay.learner.correction import refuse_unknown
from selfplay.learner.objective import Surrogate, Totals
from selfplay.reach import Bound
from selfplay.seeds import derive
from selfplay.types import Sample

COUNTS = ("tokens", "idle_samples", "computed_tokens")
"""Metrics that add up over the optimizer steps of one batch; the others are averaged."""


class Updates(ABC):
    """What turns batches of samples into optimizer steps."""

    objective: Surrogate
    mini_batches: int
    seed: int
    longest: Bound | None = None
    """The longest row that the model computes correctly, if it has such a bound."""

    @abstractmethod
    def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        """[N][C] nats that the present weights, or the reference's, give each completion.

        A token that is not trainable gets the sampler's value, or 0 if that is not finite.
        """

    @abstractmethod
    def optimize(self, samples: Sequence[Sample], totals: Totals, *, step: int) -> dict[str, float]:
        """One optimizer step on samples that have a gradient, of a batch with these totals."""

    @abstractmethod
    def follow(self) -> None:
        """Move the magnet, after the steps of a batch."""

    def update(self, samples: Sequence[Sample], *, step: int) -> dict[str, float]:
        """One pass over the samples; returns metrics.

        Raises DivergedError if a loss or a gradient is not finite; the optimizer step at fault has
        then written nothing. Raises DivergedError too, before any step, if the sampler's
        log-probability of a trainable token is not finite: no weight can be given to such a token.
        Raises ConfigError for samples that were drawn greedily, and for a sample that is longer
        than the model computes correctly.
        """
        usable = [sample for sample in samples if trainable_tokens(sample)]
        for sample in usable:
            refuse(sample, self.longest)
        if any(sample.turn.temperature <= 0 for sample in usable):
            raise ConfigError(
                "sampling: a policy that learns samples at a temperature above 0; "
                "at 0 it never tries anything else"
            )
        metrics: dict[str, float] = {
            "samples": len(samples),
            "samples_without_tokens": len(samples) - len(usable),
        }
        prepared, figures = self.objective.prepare(usable, self.logprobs)
        metrics |= figures
        parts = [self._step(part, step) for part in self._split(prepared, step)]
        if parts and "policy_kl" in parts[0]:
            # Before its first step a batch has moved nothing: what differs is how it was sampled.
            metrics.setdefault("mismatch_kl", parts[0]["policy_kl"])
        if self.objective.reads_reference and self.objective.reference == "magnet":
            self.follow()
        for name in dict.fromkeys(name for part in parts for name in part):
            values = [part[name] for part in parts if name in part]
            metrics[name] = sum(values) / (1 if name in COUNTS else len(values))
        return metrics

    def _split(self, samples: Sequence[Sample], step: int) -> Iterator[list[Sample]]:
        if not samples:
            return
        order = list(samples)
        if self.mini_batches > 1:
            Random(derive(self.seed, "mini-batches", step)).shuffle(order)
        size = -(-len(order) // self.mini_batches)
        rows = iter(order)
        while part := list(islice(rows, size)):
            yield part

    def _step(self, samples: Sequence[Sample], step: int) -> dict[str, float]:
        totals = Totals(tokens=sum(map(trainable_tokens, samples)), sequences=len(samples))
        work = samples
        if self.objective.linear_in_advantage:
            # No gradient can come from these; the denominators count them all the same.
            work = [sample for sample in samples if _any_advantage(sample)]
        metrics = {
            "tokens": float(totals.tokens),
            "idle_samples": float(len(samples) - len(work)),
        }
        if not work:
            return metrics | {"loss": 0.0, "computed_tokens": 0.0}
        return metrics | self.optimize(work, totals, step=step)


def refuse(sample: Sample, longest: Bound | None) -> None:
    """Raise an error, naming the sample, if nothing can be learned from it.

    DivergedError if a trainable token's log-probability is not finite, ConfigError if the
    sample has more tokens than `longest`.
    """
    refuse_unknown(sample, sample.turn.logprobs, whose="sampler")
    tokens = len(computed(sample))
    if longest is not None and tokens > longest.tokens:
        raise ConfigError(
            f"{named(sample)}: it has {tokens} tokens, and its model is correct for at most "
            f"{longest.tokens}, because it has {longest.reason}; shorten prompts or answers"
        )


def _any_advantage(sample: Sample) -> bool:
    advantage = sample.advantage
    return any(advantage) if isinstance(advantage, tuple) else advantage != 0
