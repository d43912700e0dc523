"""The part of a GPU that vLLM takes if the config does not set it."""

import torch

SHARED = 0.4
"""Default fraction of a GPU that an engine takes if a learner uses the same GPU."""
MARGIN = 0.1
"""Fraction of a GPU that an engine leaves free by default: the checks of weights compute there."""
SIZED = 0.01
"""Default fraction of a GPU that must be free if `engine.cache` gives the size of the cache."""


def default_memory(own_gpu: bool, *, sized: bool = False) -> float:
    """Return the fraction of a GPU that vLLM gets as its limit if `engine.memory` is None.

    Args:
        own_gpu: True if no learner shares the GPU.
        sized: True if `engine.cache` gives the size of the cache. vLLM then ignores the limit,
            except that it does not start if less is free.
    """
    if sized:
        return SIZED
    if not own_gpu:
        return SHARED
    free, total = torch.cuda.mem_get_info()
    return max(free / total - MARGIN, MARGIN)
