"""Samples that share prefixes, tiny models for them, and the gradient that the learner makes."""

from collections.abc import Sequence
from random import Random
from typing import Any, Literal

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import Objective, PolicyLoss
from selfplay.types import Sample
from tests.helpers import builders
from tests.helpers.builders import llama, sample

SIZES: dict[str, Any] = {**builders.SIZES, "num_key_value_heads": 2}
REINFORCE = PolicyLoss(ratio="none", clip="none")


def made(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8))
    if kind == "llama":
        return llama()
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=24, n_embd=16, n_layer=2, n_head=4, n_positions=64)
    )


def words(rng: Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(1, 24) for _ in range(count))


def siblings() -> list[Sample]:
    """Return two groups of four samples with the same prompt and random completions."""
    rng = Random(0)
    return [
        sample(prompt, words(rng, rng.randint(1, 6)), rng.gauss(0, 1), temperature=temperature)
        for prompt, temperature in ((words(rng, 9), 1.0), (words(rng, 5), 0.7))
        for _ in range(4)
    ]


def conversations() -> list[Sample]:
    """Return four episodes of three turns. A turn's prompt begins with the turn before it."""
    rng, found = Random(1), []
    opening = words(rng, 6)
    for _ in range(4):
        prompt = opening
        for _ in range(3):
            completion = words(rng, 4)
            found.append(sample(prompt, completion, rng.gauss(0, 1)))
            prompt = (*prompt, *completion, *words(rng, 3))
    return found


def branches() -> list[Sample]:
    """Return completions that share 3 tokens, in two sets of three that share 2 more tokens."""
    rng, found = Random(2), []
    prompt, stem = words(rng, 5), words(rng, 3)
    for _ in range(2):
        branch = words(rng, 2)
        for _ in range(3):
            completion = (*stem, *branch, *words(rng, rng.randint(1, 4)))
            credit = tuple(rng.gauss(0, 1) for _ in completion)
            mask = tuple(rng.randrange(4) > 0 for _ in completion[1:])
            found.append(sample(prompt, completion, credit, loss_mask=(1, *map(int, mask))))
    return found


def gradient(
    given: Sequence[Sample],
    packing: Literal["auto", "trie", "rows"],
    model: PreTrainedModel | None = None,
    *,
    objective: Objective = REINFORCE,
    reference: PreTrainedModel | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the flat gradient in float64 (norms of a llama: float32), and the step's metrics."""
    model = (model or llama()).double()
    model.zero_grad()
    learner = Learner(
        model,
        objective=objective,
        reference=reference,
        settings=LearnerSettings(lr=0.0, clip_norm=1e9, packing=packing, **settings),
    )
    metrics = learner.update(given, step=1)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), metrics


def apart(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).norm() / second.norm())
