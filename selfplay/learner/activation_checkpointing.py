"""Activation checkpointing: a block's inner activations are made again in the backward pass.

What stays is the input of every block, in place of all that its layers compute (1604.06174): a
third more work for a memory that hardly grows with depth. transformers' own switch works in
training mode alone, which switches on dropout, and refuses the caches that rows with a stem need.
"""

from copy import copy
from functools import lru_cache
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import Cache, PreTrainedModel

from selfplay.errors import ConfigError


def blocks(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The model's equal parts, one above the other, as its class names them."""
    named = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in named]


def recompute(model: PreTrainedModel) -> None:
    """Have the blocks of a model computed again in backward passes; ConfigError where it cannot."""
    found = blocks(model)
    if not found or not getattr(model, "supports_gradient_checkpointing", False):
        raise ConfigError(
            f"learner.activation_checkpointing: {type(model).__name__} does not say which blocks "
            "could be computed again; set it to false"
        )
    for block in found:
        kind: Any = type(block)
        block.__class__ = _recomputed(kind)


@lru_cache
def _recomputed(kind: Any) -> Any:
    """The class with another `forward`: so that copies of a block compute with their own tensors,
    and its name and those of its tensors stay."""

    def forward(self: torch.nn.Module, *given: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return kind.forward(self, *given, **named)
        caches = [each for each in (*given, *named.values()) if isinstance(each, Cache)]
        before = [[copy(layer) for layer in cache.layers] for cache in caches]

        def run(*given: Any, **named: Any) -> Any:
            # A block appends to its cache: the second time it must find what it found the first.
            for cache, layers in zip(caches, before, strict=True):
                cache.layers = [copy(layer) for layer in layers]
            return kind.forward(self, *given, **named)

        return checkpoint(run, *given, use_reentrant=False, preserve_rng_state=False, **named)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
