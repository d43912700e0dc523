"""Tests of mixtures of experts in vLLM: every update is loaded and compared."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from selfplay.engines.vllm.engine import VLLMEngine
from selfplay.engines.vllm.weight_update import checkpoint_tensors
from tests.helpers.engine_requests import END, answer
from tests.helpers.vllm_engine import VOCABULARY, asked, difference, make, shake, sharpened

pytestmark = pytest.mark.vllm


def mixtral() -> PreTrainedModel:
    config = MixtralConfig(
        num_local_experts=4,
        num_experts_per_tok=2,
        intermediate_size=64,
        **_shape(),
    )
    return MixtralForCausalLM(config)


def qwen() -> PreTrainedModel:
    config = Qwen3MoeConfig(
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        intermediate_size=128,
        norm_topk_prob=False,
        **_shape(),
    )
    return Qwen3MoeForCausalLM(config)


def _shape() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
    }


@pytest.fixture(params=[mixtral, qwen])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return sharpened(request.param().float())


@pytest.fixture
def engine() -> Iterator[VLLMEngine]:
    made = VLLMEngine(max_rows=64, cache=0.1, options={"block_size": 32})
    yield made
    made.close()


def test_every_update_of_a_mixture_arrives(engine: VLLMEngine, model: PreTrainedModel) -> None:
    engine.serve("p", model, [END])
    engine.drain_metrics()
    for version in (1, 2):
        shake(model, version)
        engine.publish("p", model.state_dict(), version)
        requests = asked("p", 8, seed=version)
        assert difference(model, requests, answer(engine, requests)) < 1e-5
    assert engine.drain_metrics()["loads_compared"] == 2
    (group,) = engine._groups.values()
    compared = [name.rpartition(".")[2] for name in group._arrival.compared]
    assert compared.count("w13_weight") == compared.count("w2_weight") == 2


def test_weights_whose_checkpoints_have_the_models_names_are_not_copied() -> None:
    weights = make().state_dict()
    found = dict(checkpoint_tensors(make(), weights))
    assert found.keys() == weights.keys()
    assert all(found[name] is weights[name] for name in weights)


def test_a_mixture_has_the_names_of_its_checkpoints(model: PreTrainedModel) -> None:
    found = dict(checkpoint_tensors(model, model.state_dict()))
    experts = {name for name in found if ".experts." in name}
    assert len(experts) == 2 * 4 * 3
    assert any(
        name.endswith((".experts.3.w2.weight", ".experts.3.down_proj.weight")) for name in experts
    )
    numbers = sum(tensor.numel() for tensor in model.state_dict().values())
    assert sum(tensor.numel() for tensor in found.values()) == numbers
