"""Tests that weights files are those of the libraries, and that the returned hashes are right."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GenerationConfig, PreTrainedModel

from selfplay.models.lora import adapted
from selfplay.models.policy_settings import Lora
from selfplay.models.weights_file import save_adapter_weights, save_model, write_tensors
from tests.helpers import architectures
from tests.helpers.builders import llama

KINDS = ("tied", "llama", "gpt2", "qwen3_moe")


def model_of(kind: str) -> PreTrainedModel:
    return llama(tie_word_embeddings=True) if kind == "tied" else architectures.made(kind)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_written_as_transformers_writes_it(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    model.save_pretrained(tmp_path / "theirs")
    hashes = save_model(model, tmp_path / "ours")
    assert contents(tmp_path / "ours") == contents(tmp_path / "theirs")
    written = (tmp_path / "ours/model.safetensors").read_bytes()
    assert hashes == {"model.safetensors": hashlib.sha256(written).hexdigest()}


def test_an_adapter_is_written_as_peft_writes_it(tmp_path: Path) -> None:
    base = llama().requires_grad_(False)
    model = adapted(base, Lora(rank=2), seed=0, where="policy")
    model.save_pretrained(tmp_path / "theirs")
    hashes = save_adapter_weights(model, tmp_path / "ours")
    theirs, ours = contents(tmp_path / "theirs"), contents(tmp_path / "ours")
    name = "adapter_model.safetensors"
    assert theirs.keys() == ours.keys() and theirs[name] == ours[name]
    assert hashes == {name: hashlib.sha256(ours[name]).hexdigest()}


def test_tensors_of_all_types_and_shapes_are_read_back(tmp_path: Path) -> None:
    numbers = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "turned": numbers.T,
        "half": numbers.bfloat16(),
        "quarter": numbers.to(torch.float8_e4m3fn),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "flags": numbers > 3,
        "empty": torch.zeros(0, 4),
        "counts": torch.tensor([1, 2, 3]),
    }
    digest = write_tensors(tensors, tmp_path / "x.safetensors")
    assert digest == hashlib.sha256((tmp_path / "x.safetensors").read_bytes()).hexdigest()
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.9, "top_p": 0.6},
        {"do_sample": False, "temperature": 0.0},
        {"early_stopping": True, "length_penalty": 2.0},
    ],
)
@pytest.mark.parametrize("lora", [False, True])
def test_settings_of_generation_that_transformers_does_not_save_are_written(
    settings: dict[str, object], lora: bool, tmp_path: Path
) -> None:
    """transformers loads such settings with a warning; its `save_pretrained` raises ValueError."""
    model: PreTrainedModel = llama()
    if lora:
        model = adapted(model.requires_grad_(False), Lora(rank=2), seed=0, where="policy")
    model.generation_config = own = GenerationConfig(eos_token_id=2, **settings)
    (save_adapter_weights if lora else save_model)(model, tmp_path)
    assert model.generation_config is own
    assert GenerationConfig.from_pretrained(tmp_path).to_dict() == own.to_dict()
