"""The check of the surrogate that `PolicyLoss.clipped` returns, which may be an author's own."""

import torch
from torch import Tensor

from selfplay.errors import ConfigError


def described(found: object) -> str:
    """Return the types of what an author's code returned, with the shapes of tensors."""
    if isinstance(found, Tensor):
        return f"a tensor of {str(found.dtype).removeprefix('torch.')} {list(found.shape)}"
    if isinstance(found, tuple | list):
        few = ", ".join(map(described, found)) if 0 < len(found) < 4 else f"{len(found)} values"
        return f"{type(found).__name__} of {few}"
    return type(found).__name__


def check_surrogate(found: object, mask: Tensor, call: str) -> tuple[Tensor, Tensor]:
    """Return what `clipped` returned, which may be an author's own.

    Raises ConfigError unless there are two tensors of the shape of `mask`, the second one of bools;
    others would be broadcast to a wrong loss.
    """
    if isinstance(found, tuple | list) and len(found) == 2:
        surrogate, bounded = found
        both = isinstance(surrogate, Tensor) and isinstance(bounded, Tensor)
        if both and surrogate.shape == bounded.shape == mask.shape and bounded.dtype == torch.bool:
            return surrogate, bounded
    raise ConfigError(
        f"objective: {call} returned {described(found)}, not two tensors of {list(mask.shape)}: "
        "the surrogate of each token, and True where it was bounded"
    )
