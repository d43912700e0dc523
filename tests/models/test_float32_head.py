"""Tests of logits in float32 of models in 16 bits."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from selfplay.models.float32_head import compute_logits_in_float32, in_float32
from selfplay.models.policy import load_policy
from tests.helpers.builders import llama, save_tiny

IDS = torch.tensor([[1, 2, 3, 4, 5]])


def short() -> Any:
    model: Any = llama()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(100.0)
    return model.to(torch.bfloat16).eval()


def test_logits_are_not_rounded_to_16_bits() -> None:
    rounded, model = short(), short()
    compute_logits_in_float32(model)
    with torch.no_grad():
        coarse, fine = rounded(input_ids=IDS).logits, model(input_ids=IDS).logits
        hidden = model.get_decoder()(input_ids=IDS).last_hidden_state
        wanted = hidden.double() @ model.get_output_embeddings().weight.double().T
    assert coarse.dtype == torch.bfloat16 and fine.dtype == torch.float32
    assert float(wanted.abs().max()) > 16  # the steps of bfloat16 are at least 1/8 there
    torch.testing.assert_close(fine.double(), wanted, rtol=1e-5, atol=1e-3)
    assert float((coarse.double() - wanted).abs().max()) > 0.02


def test_a_copy_has_its_own_weights() -> None:
    model = short()
    compute_logits_in_float32(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_output_embeddings().weight.zero_()
        assert not bool(other(input_ids=IDS).logits.any())
        assert bool(model(input_ids=IDS).logits.any())


@pytest.mark.parametrize(("dtype", "named"), [("bfloat16", "Float32Head"), ("float32", "Linear")])
def test_a_loaded_policy_in_16_bits_has_a_float32_head(
    tmp_path: Path, dtype: str, named: str
) -> None:
    policy = load_policy("base", model=str(save_tiny(tmp_path / "model")), dtype=dtype, learn=False)
    head: Any = policy.model.get_output_embeddings()
    assert type(head).__name__ == named
    assert str(head.weight.dtype) == f"torch.{dtype}"
    policy.save(tmp_path / "again")
    again = load_policy("base", model=str(tmp_path / "again"), dtype=dtype, learn=False)
    assert torch.equal(again.model(input_ids=IDS).logits, policy.model(input_ids=IDS).logits)


def test_the_gradients_of_pieces_are_added_in_float32() -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(16, 24, bias=False).to(torch.bfloat16)
    states = torch.randn(256, 16).to(torch.bfloat16)

    def at_once(logits: Any) -> float:
        pull = torch.randn(256, 24, generator=torch.Generator().manual_seed(1))
        head.weight.grad = None
        pieces = zip(states.split(4), pull.split(4), strict=True)
        sum((logits(part).float() * own).sum() for part, own in pieces).backward()
        assert head.weight.grad is not None
        wanted = pull.double().T @ states.double()
        return float((head.weight.grad.double() - wanted).norm() / wanted.norm())

    rounded, summed = at_once(head), at_once(in_float32(head))
    assert summed < 2**-8 < rounded  # one rounding at the end, not one for each piece


def test_copies_keep_their_values_and_get_no_gradient() -> None:
    head = torch.nn.Linear(4, 3).to(torch.bfloat16)
    states = torch.ones(2, 4, dtype=torch.bfloat16, requires_grad=True)
    kept, before = in_float32(head, keep=True), in_float32(head)(states).detach()
    with torch.no_grad():
        head.weight.zero_()
    assert torch.equal(kept(states), before)
    kept(states).sum().backward()
    assert head.weight.grad is None and states.grad is not None
    fixed = head.requires_grad_(False)
    assert in_float32(fixed) is fixed
