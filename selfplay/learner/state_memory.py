"""Memory of the learners' state, which is compared with the GPU before the first step."""

from collections.abc import Iterable

import torch
from torch import Tensor

from selfplay.errors import ConfigError
from selfplay.learner.process_group import shard

GRADIENT_AND_MOMENTS = 12
"""Bytes of a trained number's gradient and AdamW moments in float32."""


def state_bytes(parameters: Iterable[Tensor]) -> int:
    """Return the bytes of weights, gradients and moments in this process.

    Of a sharded parameter the part of this process counts, and of a frozen one the weight alone.
    """
    parts = [(shard(each), each.requires_grad) for each in parameters]
    return sum(
        part.numel() * (part.itemsize + GRADIENT_AND_MOMENTS * trained) for part, trained in parts
    )


def check_state_fits(parameters: Iterable[Tensor]) -> None:
    """Raise ConfigError if the state is larger than the GPU that holds the parameters.

    Without this check the first update runs out of memory, after the models have been loaded and
    the first games played. Parameters that are not on a GPU are not checked.
    """
    held = [each for each in parameters if each.device.type == "cuda"]
    if not held:
        return
    needed = state_bytes(held)
    there = torch.cuda.get_device_properties(shard(held[0]).device).total_memory
    if needed > there:
        raise ConfigError(
            f"policy: weights, gradients and moments need {needed / 1e9:.1f} GB, and the GPU has "
            f"{there / 1e9:.1f} GB; learn an adapter (policy.lora={{rank: 16}}) or use more ranks "
            "(runtime.learners); `selfplay plan` shows what fits"
        )
