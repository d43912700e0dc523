"""Tests of gradients of tool turns: tokens of results are inputs, but never targets."""

from typing import Literal

import pytest
import torch

from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.types import Sample
from tests.helpers.builders import llama, sample
from tests.helpers.gradients import REINFORCE, gradient, logprobs

PROMPT, CALL, RESULT, ANSWER = (1, 2, 3), (4, 5), (20, 21, 22), (6, 7)


def turns(call: float, answer: float, other: float) -> list[Sample]:
    """Return the call and the answer of one move, and a sibling that answers at once."""
    return [
        sample(PROMPT, CALL, call),
        sample((*PROMPT, *CALL, *RESULT), ANSWER, answer),
        sample(PROMPT, ANSWER, other),
    ]


def formula(given: list[Sample]) -> torch.Tensor:
    """Return the gradient of the mean of -A log p over these completions, by autograd alone."""
    model = llama()
    tokens = sum(len(one.turn.completion_ids) for one in given)
    losses = [-float(one.advantage) * logprobs(model, one).sum() for one in given]  # type: ignore[arg-type]
    (sum(losses[1:], losses[0]) / tokens).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("packing", ["rows", "trie"])
def test_the_gradient_is_that_of_the_sampled_tokens(packing: str) -> None:
    given = turns(1.0, 1.0, -0.5)
    found, expected = gradient(REINFORCE, given, packing=packing), formula(given)
    assert float((found - expected).norm()) < 1e-5 * float(expected.norm())
    # With the results as targets the gradient would be another one.
    learned = sample((*PROMPT, *CALL), (*RESULT, *ANSWER), 1.0)
    wrong = formula([given[0], learned, given[2]])
    assert float((wrong - expected).norm()) > 0.1 * float(expected.norm())


@pytest.mark.parametrize("packing", ["rows", "trie"])
def test_the_gradient_of_results_as_targets_is_exactly_zero(
    packing: Literal["rows", "trie"],
) -> None:
    """Check the output matrix: a row's gradient is the sum of -A (1[token] - p) h over targets.

    If tokens of results have probability 0 and are no targets, their rows have no gradient.
    """
    model = llama()
    head = model.lm_head
    learner = Learner(
        model, objective=REINFORCE, settings=LearnerSettings(lr=0.0, clip_norm=1e9, packing=packing)
    )
    unlikely = torch.zeros(24)
    unlikely[list(RESULT)] = -1e9
    head.bias = torch.nn.Parameter(unlikely)
    learner.update(turns(1.0, 1.0, -0.5), step=1)
    assert head.weight.grad is not None and head.weight.grad.any()
    assert not head.weight.grad[list(RESULT)].any()
