"""Tests of passes in bfloat16 over float32 weights."""

from contextlib import nullcontext
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from selfplay.errors import ConfigError
from selfplay.learner import learner as learner_module
from selfplay.learner.activation_checkpointing import blocks
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.learner.precision import mixed_precision
from selfplay.models.lora import adapted
from selfplay.models.policy_settings import Lora
from tests.helpers.builders import llama, mixture, same, weights
from tests.helpers.learner_processes import batch

REINFORCE = PolicyLoss(ratio="none", clip="none")


def learner(precision: Any = "auto", **settings: Any) -> Learner:
    model: Any = llama(max_position_embeddings=256)
    return Learner(
        model,
        objective=REINFORCE,
        settings=LearnerSettings(precision=precision, **{"lr": 0.01, **settings}),
    )


def test_passes_compute_in_bfloat16_and_all_else_in_float32() -> None:
    made = learner("bfloat16")
    seen: list[Any] = []
    decoder: Any = made.model.get_decoder()
    decoder.layers[0].mlp.down_proj.register_forward_hook(lambda _, given, out: seen.append(out))
    head: Any = made.model.get_output_embeddings()
    head.register_forward_hook(lambda _, given, out: seen.extend([given[0], out]))
    made.update(batch(), step=1)
    assert {tensor.dtype for tensor in seen[0::3]} == {torch.bfloat16}
    assert {tensor.dtype for tensor in seen[1::3] + seen[2::3]} == {torch.float32}
    held = [*made.parameters, *(p.grad for p in made.parameters if p.grad is not None)]
    assert {tensor.dtype for tensor in held} == {torch.float32}


def test_bfloat16_agrees_with_float32_to_its_rounding() -> None:
    """Check log-probabilities, which reach -7 nats; 8 bits of 7 are 0.03."""
    exact, rounded = (
        torch.tensor([*chain.from_iterable(learner(precision).logprobs(batch()))])
        for precision in ("float32", "bfloat16")
    )
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0, atol=2**-4)


class ExpertTypes(TorchDispatchMode):
    """A mode that collects the dtypes of the inputs of the experts' products."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[torch.dtype] = []

    def __torch_dispatch__(
        self, called: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        if called is torch.ops.aten._grouped_mm.default:
            self.found += [each.dtype for each in given[:2]]
        return called(*given, **(named or {}))


def test_experts_compute_in_bfloat16_too() -> None:
    """Check that all products are in bfloat16, and weights and gradients in float32."""
    settings = (LearnerSettings(precision=kind, lr=0.01) for kind in ("float32", "bfloat16"))
    exact, rounded = (Learner(mixture(), objective=REINFORCE, settings=each) for each in settings)
    wanted, found = (
        torch.tensor([*chain.from_iterable(each.logprobs(batch()))]) for each in (exact, rounded)
    )
    assert not torch.equal(found, wanted)
    # Rounding in the router may also choose another expert.
    torch.testing.assert_close(found, wanted, rtol=0, atol=2**-3)
    assert float((found - wanted).abs().mean()) < 2**-6
    with ExpertTypes() as types:
        rounded.update(batch(), step=1)
    # In 2 layers, 2 products forward, and 2 backward for each of them, have 2 inputs each.
    assert len(types.found) >= 2 * (2 + 2 * 2) * 2 and set(types.found) == {torch.bfloat16}
    with ExpertTypes() as types:
        exact.update(batch(), step=1)
    assert set(types.found) == {torch.float32}
    gradients = [each.grad for each in rounded.parameters if each.grad is not None]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}


def test_auto_is_float32_on_a_cpu() -> None:
    first, second = learner("auto"), learner("float32")
    assert not first.bfloat16
    first.update(batch(), step=1)
    second.update(batch(), step=1)
    assert same(weights(first.model), weights(second.model))


def adapter(**settings: Any) -> Learner:
    """Return a learner of an adapter over weights in bfloat16, which computes in bfloat16."""
    base: Any = llama()
    base.to(torch.bfloat16).requires_grad_(False)
    model = adapted(base, Lora(rank=4), seed=0, where="policy 'p'").eval()
    return Learner(
        model,
        objective=REINFORCE,
        settings=LearnerSettings(precision="bfloat16", lr=0.01, **settings),
    )


@pytest.mark.parametrize("again", [False, True])
def test_adapters_take_inputs_in_16_bits_and_learn_the_same(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the omitted casts change nothing, also if blocks are computed again."""
    made, plain = (adapter(activation_checkpointing=again) for _ in range(2))
    taken = []
    for name, layer in made.model.named_modules():
        if name.endswith("lora_A.default"):
            layer.register_forward_hook(lambda _, given, out: taken.append(given[0].dtype))
    made.update(batch(), step=1)
    assert set(taken) == {torch.bfloat16}
    monkeypatch.setattr(learner_module, "mixed_precision", lambda *_, **__: nullcontext())
    plain.update(batch(), step=1)
    for one, other in zip(made.parameters, plain.parameters, strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, other.grad) and torch.equal(one, other)


@pytest.mark.parametrize("again", [False, True])
def test_recomputed_blocks_keep_no_copies_of_their_weights(again: bool) -> None:
    made, copies = adapter(activation_checkpointing=again), []
    for block in blocks(made.model):
        block.register_forward_hook(
            lambda *_: copies.append(
                (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled())
            )
        )
    made.update(batch(), step=1)
    assert set(copies) == {(True, not again)}


@pytest.mark.parametrize(
    ("device", "bfloat16", "expected"),
    [("cuda", True, "high"), ("cuda", False, "highest"), ("cpu", True, "highest")],
)
def test_on_a_gpu_the_head_may_use_tf32(device: str, bfloat16: bool, expected: str) -> None:
    layer = SimpleNamespace(cast_input_dtype_enabled=True)
    model: Any = SimpleNamespace(device=torch.device(device), modules=lambda: [layer])
    with (
        pytest.raises(RuntimeError, match="out of memory"),
        mixed_precision(model, bfloat16=bfloat16),
    ):
        assert torch.get_float32_matmul_precision() == expected
        assert layer.cast_input_dtype_enabled is not bfloat16
        raise RuntimeError("out of memory")
    assert torch.get_float32_matmul_precision() == "highest" and layer.cast_input_dtype_enabled


def test_an_unknown_precision_is_a_one_line_error() -> None:
    with pytest.raises(ConfigError, match=r"^learner.precision: unknown precision 'bf16'; .*$"):
        learner("bf16")


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_do_not_learn(kind: torch.dtype) -> None:
    model: Any = llama()
    model.to(kind)
    with pytest.raises(ConfigError, match=r"^policy.dtype: weights that learn need float32, .*$"):
        Learner(model, objective=REINFORCE)


def test_an_adapter_over_a_base_of_16_bits_learns() -> None:
    base: Any = llama(max_position_embeddings=256)
    base.to(torch.bfloat16)
    base.requires_grad_(False)
    made = Learner(
        adapted(base, Lora(rank=2), seed=0, where="policy"),
        objective=REINFORCE,
        settings=LearnerSettings(precision="bfloat16", lr=0.01),
    )
    before = [p.detach().clone() for p in made.parameters]
    made.update(batch(), step=1)
    assert any(not torch.equal(p, old) for p, old in zip(made.parameters, before, strict=True))


def test_the_fused_step_of_large_models_equals_the_plain_one_to_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = learner()
    monkeypatch.setattr(learner_module, "FUSED_FROM", 1)
    fused = learner()
    assert fused.optimizer.defaults["fused"] and not plain.optimizer.defaults["fused"]
    for step in (1, 2, 3):
        plain.update(batch(), step=step)
        fused.update(batch(), step=step)
    for own, other in zip(fused.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)
