"""Tests of activation checkpointing: the same gradient with less memory, also in copies."""

import copy
from typing import Any

import pytest
import torch

from selfplay.errors import ConfigError
from selfplay.learner.activation_checkpointing import recompute
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from tests.helpers.builders import llama
from tests.helpers.gradients import close, gradient
from tests.helpers.learner_processes import batch

OBJECTIVE = PolicyLoss(ratio="none", clip="none", entropy=0.1)


@pytest.mark.parametrize("stem", [3, 160])
def test_the_gradient_is_the_same(stem: int) -> None:
    """Check plain rows, and rows that append to the cache of their stem."""
    given: Any = {"packing": "trie", "max_tokens": 500}
    samples = batch(length=12, stem=stem)
    found = [
        gradient(
            OBJECTIVE,
            samples,
            model=llama(max_position_embeddings=256),
            activation_checkpointing=on,
            **given,
        )
        for on in (True, False)
    ]
    assert close(found[0], found[1], 1e-6)


def test_less_is_kept_for_the_backward_pass() -> None:
    kept = []
    for on in (True, False):
        model = llama(num_hidden_layers=8)
        if on:
            recompute(model)
        tensors: dict[int, int] = {}

        def keep(tensor: torch.Tensor, tensors: dict[int, int] = tensors) -> torch.Tensor:
            tensors[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = model(input_ids=torch.arange(20)[None], use_cache=False).logits
        own = {parameter.data_ptr() for parameter in model.parameters()}
        kept.append(sum(size for place, size in tensors.items() if place not in own))
        out.sum().backward()
    assert kept[0] < kept[1] / 3


def test_a_copy_computes_with_its_own_tensors_and_names_stay() -> None:
    model = llama()
    names = list(model.state_dict())
    Learner(model, objective=OBJECTIVE, settings=LearnerSettings(activation_checkpointing=True))
    assert list(model.state_dict()) == names
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    twin(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model(input_ids=torch.tensor([[1, 2]])).logits.eq(0).all()


def test_a_model_that_names_no_blocks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    monkeypatch.setattr(model, "_no_split_modules", None)
    with pytest.raises(ConfigError, match=r"^learner.activation_checkpointing: LlamaForCausalLM "):
        Learner(model, objective=OBJECTIVE, settings=LearnerSettings(activation_checkpointing=True))


def test_auto_recomputes_on_a_gpu_if_the_model_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Learner(llama(), objective=OBJECTIVE).recomputes
    made = Learner(
        llama(), objective=OBJECTIVE, device="cuda"
    )  # like the learner of a rank before it is sharded
    assert made.recomputes and made.bfloat16
    off = Learner(
        llama(),
        objective=OBJECTIVE,
        device="cuda",
        settings=LearnerSettings(activation_checkpointing=False),
    )
    assert not off.recomputes
    unnamed = llama()
    monkeypatch.setattr(unnamed, "_no_split_modules", None)
    assert not Learner(unnamed, objective=OBJECTIVE, device="cuda").recomputes
