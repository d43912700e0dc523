"""Activation checkpointing: recomputes a block's inner activations in the backward pass.

Only the input of each block stays in memory instead of everything that its layers compute
(1604.06174). This costs a third more compute, and the memory hardly grows with depth. The switch of
transformers is not used, for two reasons: it works only in training mode, which enables dropout,
and it refuses key-value caches, which rows with a separate pass for their stem need
(`selfplay.models.tree_attention.run_tree`).
"""

from copy import copy
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import torch
from torch.utils.checkpoint import checkpoint
from transformers import Cache, PreTrainedModel

from selfplay.errors import ConfigError


def blocks(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Return the model's repeated blocks in order, as its class names them."""
    named = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in named]


Checkpointing: TypeAlias = bool | Literal["auto"]
"""Value of `learner.activation_checkpointing`; auto: true on a GPU, if the model supports it."""


def recomputes(setting: Checkpointing, model: PreTrainedModel, device: str) -> bool:
    """Return True if a model's blocks are to be recomputed in the backward pass.

    Args:
        setting: Value of `learner.activation_checkpointing`.
        model: The model.
        device: Kind of the device of the passes, as torch names it, such as cuda.
    """
    if setting == "auto":
        return device == "cuda" and _can_recompute(model)
    return setting


def recompute(model: PreTrainedModel) -> None:
    """Recompute the blocks of a model in backward passes. Raises ConfigError if the model
    cannot."""
    if not _can_recompute(model):
        raise ConfigError(
            f"learner.activation_checkpointing: {type(model).__name__} names no blocks that can be "
            "recomputed; set learner.activation_checkpointing=false"
        )
    for block in blocks(model):
        kind: Any = type(block)
        block.__class__ = recomputed_class(kind)


def recomputed(model: PreTrainedModel) -> bool:
    """Return True if a model's blocks are recomputed in backward passes."""
    return any(original_class(type(block)) is not None for block in blocks(model))


def _can_recompute(model: PreTrainedModel) -> bool:
    supported = getattr(model, "supports_gradient_checkpointing", False)
    return bool(supported and blocks(model))


def original_class(kind: type) -> type | None:
    """Return the class from which `recomputed_class` made a class; None for any other class."""
    return kind.__dict__.get("recomputes")


@lru_cache
def recomputed_class(kind: Any) -> Any:
    """Return a subclass of a block's class with another `forward`.

    A subclass is used so that copies of a block compute with their own tensors, and the names of
    the class and of the tensors stay.
    """

    def forward(self: torch.nn.Module, *given: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return kind.forward(self, *given, **named)
        caches = [value for value in (*given, *named.values()) if isinstance(value, Cache)]
        before = [[copy(layer) for layer in cache.layers] for cache in caches]

        def run(*given: Any, **named: Any) -> Any:
            # A block appends to its cache, so the second pass must start from the same cache.
            for cache, layers in zip(caches, before, strict=True):
                cache.layers = [copy(layer) for layer in layers]
            return kind.forward(self, *given, **named)

        return checkpoint(run, *given, use_reentrant=False, preserve_rng_state=False, **named)

    own = {"forward": forward, "recomputes": kind, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), own)
