"""The precision of a learner's forward and backward passes, apart from that of its weights."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias, get_args

import torch
from transformers import PreTrainedModel

from selfplay.errors import ConfigError, nearest
from selfplay.models.float32_head import SHORT

Precision: TypeAlias = Literal["auto", "float32", "bfloat16"]
"""Value of `learner.precision`; auto: bfloat16 on a GPU, float32 elsewhere."""


def in_bfloat16(precision: Precision, device: str) -> bool:
    """Return True if passes on a kind of device compute in bfloat16.

    Raises ConfigError for an unknown precision.
    """
    if precision not in get_args(Precision):
        hint = nearest(str(precision), get_args(Precision))
        raise ConfigError(f"learner.precision: unknown precision {precision!r}; {hint}")
    if precision == "auto":
        return device == "cuda"
    return precision == "bfloat16"


def computing(model: PreTrainedModel, *, bfloat16: bool) -> AbstractContextManager[Any]:
    """Return a context in which the matrix products of a model's passes compute in bfloat16.

    The weights, their gradients, the normalisations and the residual stream stay in the types that
    they have (torch.autocast).
    """
    if not bfloat16:
        return nullcontext()
    return torch.autocast(model.device.type, dtype=torch.bfloat16)


def check_masters(parameters: list[torch.nn.Parameter]) -> None:
    """Raise ConfigError if trained weights have 16 bits.

    A step of AdamW at a usual learning rate is smaller than their rounding, so that nothing would
    be learned.
    """
    for parameter in parameters:
        if parameter.dtype in SHORT:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ConfigError(
                f"policy.dtype: weights that learn need float32, because {kind} loses small steps; "
                "set policy.dtype=float32 (learner.precision=bfloat16 computes in 16 bits), or "
                "train an adapter (policy.lora)"
            )
