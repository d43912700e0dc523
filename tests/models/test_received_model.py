"""Tests of models made of received weights, against the same models loaded from files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    Qwen3Config,
)

from selfplay.errors import RunError
from selfplay.models import policy
from selfplay.models.received_model import received

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "llama, tied, scaled positions": LlamaConfig(
        **SIZES, tie_word_embeddings=True, rope_parameters=SCALED
    ),
    "qwen3": Qwen3Config(**SIZES, tie_word_embeddings=True),
    "gemma2": Gemma2Config(**SIZES, sliding_window=16),
    "gemma3": Gemma3TextConfig(**SIZES, sliding_window=16),
}


@pytest.fixture(params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the folder of a random model that has its own generation config."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[request.param])
    model.generation_config = GenerationConfig(eos_token_id=[5, 7])
    model.save_pretrained(tmp_path)
    return str(tmp_path)


def made(folder: str, loaded: Any, dtype: Any) -> Any:
    weights = {name: each.detach().clone() for name, each in loaded.named_parameters()}
    model = received(folder, weights, where="policy", dtype=dtype, device=torch.device("cpu"))
    assert model is not None
    for name, each in model.named_parameters():  # copies, because received weights may be read-only
        assert each.data_ptr() != weights[name].data_ptr()
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_tensor_is_that_of_a_loaded_model(folder: str, dtype: str) -> None:
    loaded: Any = policy.load_model(folder, where="policy", dtype=dtype)
    found = made(folder, loaded, getattr(torch, dtype))
    for theirs, ours in (
        (loaded.named_parameters(), found.named_parameters()),
        (loaded.named_buffers(), found.named_buffers()),
        (loaded.state_dict().items(), found.state_dict().items()),
    ):
        wanted, present = dict(theirs), dict(ours)
        assert list(wanted) == list(present)
        for name, tensor in wanted.items():
            other = present[name]
            assert (other.dtype, other.device) == (tensor.dtype, tensor.device), name
            assert torch.equal(other, tensor), name
            assert other.requires_grad == tensor.requires_grad, name
    tied = [
        each.get_input_embeddings().weight is each.get_output_embeddings().weight
        for each in (loaded, found)
    ]
    assert tied[0] == tied[1]
    assert found.training is loaded.training is False
    assert found.generation_config.eos_token_id == [5, 7]
    assert (
        found.config.to_dict().items()
        >= {**loaded.config.to_dict(), "_name_or_path": found.config.name_or_path}.items()
    )
    ids = torch.arange(40).view(2, 20)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits.float(), found(ids).logits.float())


def test_weights_that_are_missing_or_do_not_fit_are_named(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen3"])
    model.save_pretrained(tmp_path)
    given: Any = {"where": "policy 'base'", "dtype": "auto", "device": torch.device("cpu")}
    weights = dict(model.state_dict())
    del weights["model.norm.weight"]
    with pytest.raises(
        RunError, match=r"policy 'base': no weights of model\.norm\.weight were sent"
    ):
        received(str(tmp_path), weights, **given)
    weights["model.norm.weight"] = torch.ones(3)
    with pytest.raises(RunError, match=r"shape \[3\], and the config .* has \[32\]"):
        received(str(tmp_path), weights, **given)
