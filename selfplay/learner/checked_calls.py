"""The calls of an objective, which may be an author's own, and the checks of their results."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from selfplay.author_code import naming, stated_list, stated_numbers
from selfplay.errors import ConfigError
from selfplay.learner.objective import BatchCounts, LossInputs, Objective, Score
from selfplay.learner.surrogate import described
from selfplay.types import Sample


def prepared(
    objective: Objective, samples: Sequence[Sample], score: Score
) -> tuple[list[Sample], dict[str, float]]:
    """Return what `prepare` of an objective returns: samples and metrics.

    Args:
        objective: The objective.
        samples: The samples of a batch.
        score: The function that scores samples. An error of this function is raised as it is.
    Raises:
        ConfigError: In one line that names the objective, for an error of an author's code, and for
            a result that is not a list of samples and a mapping of numbers.
    """
    raised: list[BaseException] = []

    def scored(samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        try:
            return score(samples, reference=reference)
        except BaseException as error:
            raised.append(error)
            raise

    name = f"objective: {type(objective).__name__}.prepare"
    with naming(name, objective, passing=raised):
        found: Any = objective.prepare(samples, scored)
    kept, metrics = _pair(found, name, "a pair: the samples, and a dictionary of metrics")
    return stated_list(kept, Sample, name), stated_numbers(metrics, name)


def loss_of(
    objective: Objective, scores: LossInputs, totals: BatchCounts
) -> tuple[Tensor, dict[str, float]]:
    """Return what `loss` of an objective returns: the loss and sums of diagnostics.

    Args:
        objective: The objective of the step.
        scores: The inputs of the loss.
        totals: The counts of the optimizer step.
    Raises:
        ConfigError: In one line that names the objective, for an error of an author's code, and for
            a result that is not a number with a gradient and a mapping of numbers.
    """
    full: list[BaseException] = []
    name = f"objective: {type(objective).__name__}.loss"
    with naming(name, objective, passing=full):
        try:
            found: Any = objective.loss(scores, totals)
        except torch.OutOfMemoryError as error:  # the learner names the keys that need less memory
            full.append(error)
            raise
    loss, sums = _pair(found, name, "a pair: the loss, and a dictionary of sums")
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ConfigError(
            f"{name} returned {described(loss)} as the loss, not a tensor of one number"
        )
    if not loss.requires_grad:
        raise ConfigError(
            f"{name} returned a loss without a gradient; compute it from scores.logprobs"
        )
    return loss, stated_numbers(sums, name)


def _pair(found: Any, name: str, expected: str) -> tuple[Any, Any]:
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise ConfigError(f"{name} returned {described(found)}, not {expected}")
    first, second = found
    return first, second
