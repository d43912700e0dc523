"""The base of all learners: a batch of samples becomes optimizer steps.

An update makes all optimizer steps on the samples of a batch, wherever they are computed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from random import Random

from selfplay.config.schedule import Schedule
from selfplay.errors import ConfigError, DivergedError
from selfplay.learner.batch import computed_count, named, trainable_tokens
from selfplay.learner.checked_calls import prepared
from selfplay.learner.objective import BatchCounts, Objective
from selfplay.learner.rollout_correction import check_logprobs_known
from selfplay.models.position_limits import ContextBound
from selfplay.rng import derive
from selfplay.types import Sample

COUNTS = ("tokens", "idle_samples", "computed_tokens", "skipped")
"""Metrics that are summed over the optimizer steps of one batch; the others are averaged."""


class BaseLearner(ABC):
    """Base class of learners: splits a batch of samples into optimizer steps.

    A subclass computes the steps: `Learner` in this process, the runtime's learner on other
    processes. The training loop calls `update` once per step.
    """

    objective: Objective
    """The objective, whose loss is minimised."""
    mini_batches: int
    """Number of optimizer steps per pass over a batch."""
    epochs: int
    """Number of passes over a batch."""
    seed: int
    """Seed of the split into mini-batches."""
    longest: ContextBound | None = None
    """Longest row that the model computes correctly, if there is such a bound."""

    @abstractmethod
    def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        """Return [S, C] nats of each completion under the present weights, or under the reference.

        A token that is not trainable gets the sampler's value, or 0 if that is not finite.
        """

    @abstractmethod
    def optimize(
        self, samples: Sequence[Sample], totals: BatchCounts, *, step: int
    ) -> dict[str, float]:
        """Make one optimizer step on samples that have a gradient. Returns metrics.

        `totals` are the denominators of the loss: counts over all samples of the step, also those
        without a gradient.
        """

    @abstractmethod
    def update_ema(self) -> None:
        """Move the EMA, after the steps of a batch."""

    def update(self, samples: Sequence[Sample], *, step: int) -> dict[str, float]:
        """Make `epochs` passes over the samples, each in `mini_batches` optimizer steps.

        Returns metrics.

        An optimizer step whose loss or gradient is not finite writes nothing and is skipped; the
        metric `skipped` counts such steps.

        Raises:
            DivergedError: After more than `max_skipped` skipped steps in a row, or after one if a
                weight is not finite. Before any step, if the sampler's log-probability of a
                trainable token is not finite.
            ConfigError: For samples that were drawn greedily, and for a sample that is longer than
                the model computes correctly.
        """
        usable = [sample for sample in samples if trainable_tokens(sample)]
        for sample in usable:
            check_sample(sample, self.longest)
        if any(sample.turn.temperature <= 0 for sample in usable):
            raise ConfigError(
                "sampling: a policy that learns must sample at a temperature above 0; "
                "at 0 it never explores"
            )
        metrics: dict[str, float] = {
            "samples": len(samples),
            "samples_without_tokens": len(samples) - len(usable),
        }
        ready, prepared_metrics = prepared(self.objective, usable, self.logprobs)
        metrics |= prepared_metrics
        weights = {"kl_weight": self.objective.kl, "entropy_weight": self.objective.entropy}
        metrics |= {
            name: weight.at(step)
            for name, weight in weights.items()
            if isinstance(weight, Schedule)
        }
        parts = [
            self._step(part, step)
            for epoch in range(self.epochs)
            for part in self._split(ready, step, epoch)
        ]
        if parts and "policy_kl" in parts[0]:
            # Before the first step no weight has moved, so this difference is that of the sampler.
            metrics.setdefault("mismatch_kl", parts[0]["policy_kl"])
        moved = not parts or any("skipped" not in part for part in parts)
        if moved and self.objective.reads_reference and self.objective.reference == "ema":
            self.update_ema()
        for name in dict.fromkeys(name for part in parts for name in part):
            values = [part[name] for part in parts if name in part]
            metrics[name] = sum(values) / (1 if name in COUNTS else len(values))
        return metrics

    def _split(self, samples: Sequence[Sample], step: int, epoch: int) -> Iterator[list[Sample]]:
        """Yield the samples of each optimizer step of a pass, whose numbers differ by at most one.

        A much smaller last part would weigh each of its samples several times as much.
        """
        if not samples:
            return
        order = list(samples)
        if self.mini_batches > 1:
            later = (epoch,) if epoch else ()
            Random(derive(self.seed, "mini-batches", step, *later)).shuffle(order)
        count = min(self.mini_batches, len(order))
        for number in range(count):
            yield order[number * len(order) // count : (number + 1) * len(order) // count]

    def _step(self, samples: Sequence[Sample], step: int) -> dict[str, float]:
        totals = BatchCounts(tokens=sum(map(trainable_tokens, samples)), sequences=len(samples))
        work = samples
        if self.objective.at(step).linear_in_advantage:
            # The samples left out have no gradient, but the denominators count them.
            work = [sample for sample in samples if _any_advantage(sample)]
        metrics = {
            "tokens": float(totals.tokens),
            "idle_samples": float(len(samples) - len(work)),
        }
        if not work:
            return metrics | {"loss": 0.0, "computed_tokens": 0.0}
        try:
            return metrics | self.optimize(work, totals, step=step)
        except DivergedError as error:
            again = "or resume from the last checkpoint with other settings"
            raise DivergedError(f"{error}, {again}") from error


def check_sample(sample: Sample, longest: ContextBound | None) -> None:
    """Raise an error, naming the sample, if it cannot be learned from.

    DivergedError if a trainable token's log-probability is not finite, ConfigError if the sample
    has more tokens than `longest`.
    """
    check_logprobs_known(sample, sample.turn.logprobs, whose="sampler")
    if longest is not None and (tokens := computed_count(sample)) > longest.tokens:
        raise ConfigError(
            f"{named(sample)}: it has {tokens} tokens, and its model is correct for at most "
            f"{longest.tokens}, because it has {longest.reason}; shorten prompts or answers"
        )


def _any_advantage(sample: Sample) -> bool:
    advantage = sample.advantage
    return any(advantage) if isinstance(advantage, tuple) else advantage != 0
