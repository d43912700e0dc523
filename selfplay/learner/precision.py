"""The precision of a learner's forward and backward passes, apart from that of its weights."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import library
from transformers import PreTrainedModel

from selfplay.errors import ConfigError, nearest
from selfplay.learner.activation_checkpointing import recomputed
from selfplay.models.float32_head import SHORT

Precision: TypeAlias = Literal["auto", "float32", "bfloat16"]
"""Value of `learner.precision` and `warmstart.precision`.

auto is bfloat16 on a GPU and float32 elsewhere.
"""


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
    they have (torch.autocast). Copies of weights in bfloat16 are kept for further passes in the
    context, unless blocks are recomputed. These copies would then need more memory than anything
    else. The experts of a mixture are copied in each pass.
    """
    if not bfloat16:
        return nullcontext()
    _cast_experts(model.device.type)
    return torch.autocast(
        model.device.type, dtype=torch.bfloat16, cache_enabled=not recomputed(model)
    )


@cache
def _cast_experts(device: str) -> None:
    """Let torch.autocast cast the inputs of the product that computes the experts of a mixture.

    torch 2.13 casts those of other matrix products only (pytorch issue 174763).
    """
    library.register_autocast("aten::_grouped_mm", device, torch.bfloat16)


@contextmanager
def mixed_precision(*models: PreTrainedModel, bfloat16: bool) -> Iterator[None]:
    """Set up torch and adapters for forward and backward passes that `computing` runs in bfloat16.

    Two things change. On a GPU, the matrix products of the output embedding, which stay in float32,
    use TF32 (a mantissa of 10 bits; that of bfloat16 has 7). Adapters no longer cast their inputs
    to float32, because autocast would cast them back. Backward passes must be inside the context
    too, because they may compute blocks again. Without `bfloat16` nothing changes.
    """
    if not bfloat16:
        yield
        return
    before = torch.get_float32_matmul_precision()
    layers: list[Any] = [
        module
        for model in models
        for module in model.modules()
        if getattr(module, "cast_input_dtype_enabled", False)  # peft's layers
    ]
    try:
        if any(model.device.type == "cuda" for model in models):
            torch.set_float32_matmul_precision("high")
        for layer in layers:
            layer.cast_input_dtype_enabled = False
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for layer in layers:
            layer.cast_input_dtype_enabled = True


def check_masters(parameters: list[torch.nn.Parameter]) -> None:
    """Raise ConfigError if trained weights have 16 bits.

    A step of AdamW at a usual learning rate is smaller than the rounding error of 16 bits, so that
    the weights would not change.
    """
    for parameter in parameters:
        if parameter.dtype in SHORT:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ConfigError(
                f"policy.dtype: weights that learn need float32, because {kind} loses small steps; "
                "set policy.dtype=float32 (learner.precision=bfloat16 computes in 16 bits), or "
                "train an adapter (policy.lora)"
            )
