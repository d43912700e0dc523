"""Tests of trees under flex attention: their gradient is that of padded rows under sdpa.

The tests compute flex attention densely on a CPU, without a compiler and with the same mask. torch
refuses its backward pass on a CPU, because it has no compiled one; a fixture allows it.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch
import transformers.integrations.flex_attention as integration
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import flex_attention
from transformers import MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from selfplay.errors import ConfigError
from selfplay.learner import batch as batches
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.models import tree_attention
from selfplay.models.lora import adapted
from selfplay.models.policy_settings import Lora
from selfplay.types import Sample
from tests.helpers.builders import llama, sample
from tests.helpers.shared_prefixes import (
    SIZES,
    apart,
    branches,
    conversations,
    gradient,
    made,
    siblings,
    words,
)

FLEX: Any = {"attention": "flex_attention"}
OBJECTIVE = PolicyLoss(ratio="none", clip="none")


@pytest.fixture
def backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a learner on a CPU to use flex attention."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    monkeypatch.delitem(tree_attention.ON_GPUS, "flex_attention")


@pytest.fixture
def dense(backward: None) -> Iterator[None]:
    """Allow flex attention on a CPU, and compile nothing."""
    with torch.compiler.set_stance("force_eager"):
        yield


def long() -> list[Sample]:
    """Return two trees of several blocks, with branches before, on and after block borders."""
    rng, found = Random(5), []
    for length in (90, 200):
        stem = words(rng, length)
        for cut in (60, 127, 128, length):
            bough = (*stem[:cut], *words(rng, 50))
            found += [sample(bough, words(rng, 9), rng.gauss(0, 1)) for _ in range(2)]
    return found


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("make", [siblings, conversations, branches])
def test_the_gradient_is_that_of_rows_under_sdpa(dense: None, kind: str, make: Any) -> None:
    """In both models, two query heads share a key-value head."""
    objective = PolicyLoss(entropy=0.1)
    rows, plain = gradient(make(), "rows", made(kind), objective=objective)
    packed, found = gradient(make(), "trie", made(kind), objective=objective, **FLEX)
    assert apart(packed, rows) < 1e-6
    assert found["computed_tokens"] < plain["computed_tokens"]
    for name in ("loss", "policy_kl", "surprisal", "clipped"):
        assert found[name] == pytest.approx(plain[name], abs=1e-6)


@pytest.mark.parametrize("settings", [{}, {"activation_checkpointing": True}, {"max_tokens": 400}])
def test_rows_of_several_blocks(dense: None, settings: Any) -> None:
    """A micro-batch has one row or two; activation checkpointing computes blocks twice."""

    def model() -> Any:
        return llama(max_position_embeddings=512)

    rows, _ = gradient(long(), "rows", model(), objective=OBJECTIVE)
    packed, _ = gradient(long(), "trie", model(), objective=OBJECTIVE, **settings, **FLEX)
    assert apart(packed, rows) < 1e-6
    alone, _ = gradient(long(), "rows", model(), objective=OBJECTIVE, **settings, **FLEX)
    assert apart(alone, rows) < 1e-6


@pytest.mark.parametrize("packing", ["rows", "trie"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_rows_of_all_lengths_use_one_kernel(
    dense: None, packing: Any, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's kernel for short rows has no program for some numbers of heads."""
    given, real = list[Any](), integration.compile_friendly_flex_attention

    def recorded(*args: Any, **named: Any) -> Any:
        given.append(named["kernel_options"])
        return real(*args, **named)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", recorded)
    model = made("qwen3")
    gradient(siblings(), packing, model, activation_checkpointing=checkpointing, **FLEX)
    assert given and all(options == {"BACKEND": "TRITON"} for options in given)
    given.clear()
    with tree_attention.attending("sdpa", model):
        model(input_ids=torch.tensor([[1, 2, 3]]))
    assert not given and not model.get_decoder()._forward_pre_hooks


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_log_probabilities_in_other_precisions(dense: None, dtype: Any, close: float) -> None:
    base: Any = llama(max_position_embeddings=512)
    base.to(dtype).requires_grad_(False)
    model, given = adapted(base, Lora(rank=2), seed=0, where="policy"), long()
    flex = Learner(
        model, objective=OBJECTIVE, settings=LearnerSettings(packing="trie", **FLEX)
    ).logprobs(given)
    rows = Learner(model, objective=OBJECTIVE, settings=LearnerSettings(packing="rows")).logprobs(
        given
    )
    for mine, wanted in zip(flex, rows, strict=True):
        assert mine == pytest.approx(wanted, rel=close, abs=close)


def test_a_reference_uses_the_kernel_and_models_get_their_own_back(dense: None) -> None:
    model, reference = llama(), llama(seed=1)
    objective = PolicyLoss(kl=0.1)
    found = []
    for more in ({"packing": "rows"}, {"packing": "trie", **FLEX}):
        learner = Learner(
            model,
            objective=objective,
            reference=reference,
            settings=LearnerSettings(lr=0.0, **more),
        )
        found.append(learner.update(conversations(), step=1))
        kinds = {each.config._attn_implementation for each in (model, reference)}
        assert kinds == {"sdpa"}  # the kernel that samples
    assert found[1]["loss"] == pytest.approx(found[0]["loss"], abs=1e-6)
    assert found[1]["reference_kl"] == pytest.approx(found[0]["reference_kl"], abs=1e-6)


def test_trees_are_not_divided_if_no_mask_is_stored(
    dense: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selfplay.learner.packing.MASK", 1)
    monkeypatch.setattr(batches, "STEM", 1)
    learner = Learner(
        llama(), objective=OBJECTIVE, settings=LearnerSettings(packing="trie", **FLEX)
    )
    (row, other) = learner.packer.rows(siblings(), max_tokens=1000)
    assert len(row.spans) == len(other.spans) == 4
    assert batches.passes([row]) == 1  # the stem gets no pass of its own
    held = Learner(llama(), objective=OBJECTIVE, settings=LearnerSettings(packing="trie")).packer
    assert max(len(row.spans) for row in held.rows(siblings(), max_tokens=1000)) < 4


def test_layers_with_a_window_keep_it_and_learn_from_rows(dense: None) -> None:
    def windowed() -> Any:
        torch.manual_seed(0)
        return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8))

    with pytest.raises(ConfigError, match=r"packing: trie needs .* sliding-window"):
        Learner(windowed(), objective=OBJECTIVE, settings=LearnerSettings(packing="trie", **FLEX))
    rows, _ = gradient(conversations(), "rows", windowed())
    found, _ = gradient(conversations(), "auto", windowed(), **FLEX)
    assert apart(found, rows) < 1e-6


@pytest.mark.slow
def test_rows_of_other_shapes_need_no_program_each(
    backward: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch itself traces single rows and pairs of rows, of one block and of several."""
    counter = CompileCounter()
    compiled = torch.compile(flex_attention.flex_attention, backend=counter)

    def call(*given: Any, training: bool, **named: Any) -> Any:
        return compiled(*given, **named)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", call)
    model, rng = llama(max_position_embeddings=1024, num_hidden_layers=1), Random(7)
    learner = Learner(
        model,
        objective=OBJECTIVE,
        settings=LearnerSettings(packing="trie", lr=0.0, max_tokens=700, **FLEX),
    )
    counts = []
    for more in range(3):
        for number, width in enumerate((40, 60, 150, 256)):
            stems = [(1 + n, *words(rng, width + more)) for n in range(1 + number % 2)]
            given = [sample(stem, words(rng, 9), 1.0) for stem in stems for _ in range(2)]
            learner.update(given, step=1)
        counts.append(counter.frame_count)
    assert 0 < counts[1] == counts[2] <= 6


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("flex_attention", r"flex_attention has no backward pass on a CPU; set policy\.device"),
        ("flash_attention_2", r"flash_attention_2 has no code for a CPU; set policy\.device"),
    ],
)
def test_kernels_that_a_cpu_lacks_are_refused(kernel: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^learner\.attention: {said}") as caught:
        Learner(llama(), objective=OBJECTIVE, settings=LearnerSettings(attention=kernel))
    assert "\n" not in str(caught.value)


def test_a_rank_checks_on_a_cpu_the_kernel_of_its_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    learner = Learner(
        llama(), objective=OBJECTIVE, settings=LearnerSettings(packing="trie", **FLEX)
    )
    assert learner.packer.sparse


def test_a_missing_package_and_weights_in_float32_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(tree_attention.ON_GPUS, "flash_attention_2")
    monkeypatch.setattr(tree_attention, "is_flash_attn_2_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^learner\.attention: .* needs the package flash-attn"):
        Learner(
            llama(), objective=OBJECTIVE, settings=LearnerSettings(attention="flash_attention_2")
        )
    monkeypatch.setattr(tree_attention, "is_flash_attn_2_available", lambda: True)
    with pytest.raises(ConfigError, match=r"16 bits, and the weights are float32; set policy\.d"):
        Learner(
            llama(), objective=OBJECTIVE, settings=LearnerSettings(attention="flash_attention_2")
        )


@pytest.mark.parametrize("kind", ["gpt2", "mamba"])
def test_a_model_without_the_kernel_is_named(dense: None, kind: str) -> None:
    sizes: Any = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 1}
    model = made("gpt2") if kind == "gpt2" else MambaForCausalLM(MambaConfig(**sizes))
    name = type(model).__name__
    said = rf"^learner\.attention: {name} cannot use flex_attention here"
    with pytest.raises(ConfigError, match=said) as caught:
        Learner(model, objective=OBJECTIVE, settings=LearnerSettings(**FLEX))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
    assert model.config._attn_implementation != "flex_attention"


def test_the_other_kernels_of_a_cpu_can_be_chosen() -> None:
    rows, _ = gradient(siblings(), "rows", made("qwen3"))
    packed, _ = gradient(siblings(), "trie", made("qwen3"), attention="eager")
    assert apart(packed, rows) < 1e-6
