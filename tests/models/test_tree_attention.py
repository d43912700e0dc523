"""Tests of models that accept a tree of tokens in a row, and of models that do not."""

import copy
from typing import Any

import pytest
from transformers import (
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from selfplay.errors import ConfigError
from selfplay.learner import batch as batches
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.models import tree_attention
from selfplay.models.tree_attention import tree_problem
from tests.helpers.builders import llama
from tests.helpers.shared_prefixes import SIZES, apart, conversations, gradient, made, siblings


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("stem", [1, 128])
def test_models_that_accept_trees(
    kind: str, attention: str, stem: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "STEM", stem)
    model = made(kind)
    model.set_attn_implementation(attention)
    assert tree_problem(model) == ""
    rows, _ = gradient(conversations(), "rows", model)
    packed, _ = gradient(conversations(), "trie", model)
    assert apart(packed, rows) < 1e-6


REFUSED = [
    (MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)), "sliding-window"),
    (MambaForCausalLM(MambaConfig(vocab_size=24, hidden_size=16, num_hidden_layers=1)), "recurren"),
    (
        Qwen3ForCausalLM(
            Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1)
        ),
        "sliding_attention",
    ),
]


@pytest.mark.parametrize(("model", "words"), REFUSED)
def test_models_without_trees_fall_back_to_rows_with_a_note(
    model: PreTrainedModel, words: str
) -> None:
    objective = PolicyLoss()
    with pytest.raises(ConfigError, match=f"packing.*{type(model).__name__} has .*{words}"):
        Learner(model, objective=objective, settings=LearnerSettings(packing="trie"))
    learner = Learner(model, objective=objective, settings=LearnerSettings(packing="auto"))
    assert learner.packer.packing == "rows"
    assert any(words in note and "padded rows" in note for note in learner.notes)
    assert Learner(model, objective=objective, settings=LearnerSettings(packing="rows")).notes == ()
    together, _ = gradient(siblings(), "auto", model)
    one_by_one, _ = gradient(siblings(), "auto", model, max_tokens=1)
    assert apart(together, one_by_one) < 1e-5


@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids"])
def test_a_model_that_ignores_the_mask_or_positions_is_found(ignored: str) -> None:
    model = llama()
    forward = model.forward

    def careless(**arguments: Any) -> Any:
        arguments.pop(ignored, None)
        return forward(**arguments)

    model.forward = careless
    assert tree_problem(model) == "attention that does not follow a tree's mask and positions"


def test_a_model_that_raises_an_error_on_a_tree_falls_back() -> None:
    model = llama()
    forward = model.forward

    def strict(input_ids: Any, use_cache: bool) -> Any:
        return forward(input_ids=input_ids, use_cache=use_cache)

    model.forward = strict
    assert "does not take a tree's mask (TypeError)" in tree_problem(model)


def test_a_reference_without_trees_makes_the_policy_use_rows() -> None:
    learner = Learner(llama(), objective=PolicyLoss(kl=0.1), reference=REFUSED[0][0])
    assert learner.packer.packing == "rows" and "Mistral" in learner.notes[0]


def test_a_large_model_on_a_cpu_is_tested_with_two_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model is tested with all layers; those of a large model would take minutes."""
    calls: list[int] = []

    def count(model: Any) -> int:
        """Return the number of layer passes while a learner of the model is made."""
        calls.clear()
        reference = copy.deepcopy(model).requires_grad_(False)
        Learner(model, objective=PolicyLoss(kl=0.1), reference=reference, device="cuda")
        return len(calls)

    model, small = llama(num_hidden_layers=6), llama()
    for layer in [*model.model.layers, *small.model.layers]:
        layer.register_forward_hook(lambda *_: calls.append(1))
    size = sum(parameter.numel() for parameter in model.parameters())
    assert count(model) == 3 * count(small) > 0
    monkeypatch.setattr(tree_attention, "LARGE", size)
    of_small = count(small)
    assert count(model) == of_small
    assert len(model.model.layers) == model.config.num_hidden_layers == 6
    shared = tree_attention.sample_layers(model)
    assert len(shared.get_decoder().layers) == shared.config.num_hidden_layers == 2
    own = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in shared.parameters()} < own
    assert tree_problem(model) == ""
