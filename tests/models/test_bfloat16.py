"""Tests of Muon on a processor without instructions for bfloat16."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from selfplay.models.bfloat16 import fast_products

SLOW = "selfplay.models.bfloat16.slow_bfloat16"


class Types(TorchDispatchMode):
    """A mode that records the dtypes of the tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self.seen |= {found.dtype} if isinstance(found, torch.Tensor) else set()
        return found


def stepped(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, set[torch.dtype]]:
    """Return a gradient, the change of a zero matrix by a step of Muon, and the dtypes used."""
    torch.manual_seed(0)
    matrix = torch.nn.Parameter(torch.zeros(rows, columns))
    matrix.grad = torch.randn(rows, columns)
    kept = matrix.grad.clone()
    muon = torch.optim.Muon([matrix], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False)
    with fast_products(), Types() as types:
        muon.step()
    assert torch.equal(matrix.grad, kept)
    return kept, matrix.detach(), types.seen


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_muon_computes_in_float32_if_bfloat16_is_slow(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SLOW, lambda: True)
    gradient, change, types = stepped(*shape)
    assert torch.bfloat16 not in types
    # Five steps of Newton and Schulz act on singular values: s -> a s + b s^3 + c s^5.
    left, values, right = torch.linalg.svd(gradient.double(), full_matrices=False)
    values = values / gradient.double().norm()
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    scale = max(1.0, shape[0] / shape[1]) ** 0.5
    expected = -scale * left @ torch.diag(values) @ right
    torch.testing.assert_close(change.double(), expected, atol=1e-5, rtol=1e-5)


def test_muon_computes_in_bfloat16_if_it_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SLOW, lambda: False)
    assert torch.bfloat16 in stepped(6, 4)[2]
