"""Gradients of learners, and log-probabilities computed without the learner's code."""

from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import Objective, PolicyLoss
from selfplay.learner.references import GivenReferences
from selfplay.types import Sample
from tests.helpers.builders import llama, sample

REINFORCE = PolicyLoss(ratio="none", clip="none", aggregate="token_mean")


def logprobs(model: PreTrainedModel, one: Sample) -> torch.Tensor:
    """Return [C] log-probabilities in nats of an unpadded sample, without the learner's code."""
    turn = one.turn
    ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]])
    logits = model(input_ids=ids).logits[0, len(turn.prompt_ids) - 1 : -1] / turn.temperature
    rows = torch.arange(len(turn.completion_ids))
    return logits.log_softmax(-1)[rows, list(turn.completion_ids)]


def on_policy(model: PreTrainedModel, samples: list[Sample]) -> list[Sample]:
    """Return the samples with the log-probabilities of their tokens under the model."""
    with torch.no_grad():
        return [
            replace(s, turn=replace(s.turn, logprobs=tuple(logprobs(model, s).tolist())))
            for s in samples
        ]


def samples() -> list[Sample]:
    return [
        sample([1, 2, 3, 4], [5, 6, 7], 1.0),
        sample([3], [4, 9, 9, 2, 8], -0.5, loss_mask=(1, 0, 1, 1, 0)),
        sample([1, 2, 3, 4], [9], (2.0,), temperature=0.7),
        sample([7, 7], [5, 6], 0.0),
        sample([7, 7], [1, 6, 3], (0.0, -1.0, 0.5)),
    ]


def gradient(
    objective: Objective,
    given: list[Sample],
    *,
    model: PreTrainedModel | None = None,
    reference: GivenReferences = None,
    **settings: Any,
) -> torch.Tensor:
    """Return the flat gradient that the learner computes, by default for the same new model."""
    model = model or llama()
    learner = Learner(
        model,
        objective=objective,
        reference=reference,
        settings=LearnerSettings(lr=0.0, clip_norm=1e9, **settings),
    )
    learner.update(given, step=1)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def close(first: torch.Tensor, second: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return float((first - second).norm()) <= tolerance * float(second.norm()) and bool(second.any())
