"""Products of matrices in bfloat16 on processors without instructions for them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def slow_bfloat16() -> bool:
    """Return True if this machine's CPU has no instructions for matrix products in bfloat16.

    False if it is not known, because torch was built without oneDNN.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def fast_products() -> AbstractContextManager[Any]:
    """Return a context in which torch's Muon computes in float32 if bfloat16 is slow here.

    Muon makes copies of its matrices in bfloat16 on every device. On a CPU without instructions
    for it, their products take many times as long as in float32: half of a warm start.
    """
    return _CopiesInFloat32() if slow_bfloat16() else nullcontext()


class _CopiesInFloat32(TorchFunctionMode):
    """A context in which `Tensor.bfloat16` returns a copy in float32."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.bfloat16:
            return args[0].to(torch.float32, copy=True)
        return func(*args, **(kwargs or {}))
