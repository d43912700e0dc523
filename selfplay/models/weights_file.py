"""Weights of models in safetensors files that are hashed while they are written.

The files are those of `save_pretrained`. The writer of safetensors is not used, because it holds
Python's interpreter lock until a file is written, so that a thread that writes a checkpoint would
stop training, and because the hash would need a second reading of the file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import _TYPES
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict
from transformers.utils import (
    ADAPTER_SAFE_WEIGHTS_NAME,
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_NAME,
)

from selfplay.models.main_memory import in_main_memory
from selfplay.run.hashing_file import HashingFile

_NAMES = {dtype: name for name, dtype in _TYPES.items()}
"""Name in the format of each type."""
_ALIGNMENT = 8
"""Number of bytes of which the header's length is a multiple."""


def save_model(model: PreTrainedModel, folder: Path) -> dict[str, str]:
    """Write a whole model, without its tokenizer, in Hugging Face layout and one file of weights.

    Returns the SHA-256 of the weights by file name.
    """
    _save_settings(model, folder)
    state = model.state_dict()
    for name in model._keys_to_ignore_on_save or ():
        state.pop(name, None)
    state = remove_tied_weights_from_state_dict(state, model)
    state = revert_weight_conversion(model, state)
    return {SAFE_WEIGHTS_NAME: write_tensors(state, folder / SAFE_WEIGHTS_NAME)}


def save_adapter_weights(model: PreTrainedModel, folder: Path) -> dict[str, str]:
    """Write the adapter of a model in peft's layout.

    Returns the SHA-256 of the weights by file name.
    """
    _save_settings(model, folder)
    state = model.get_adapter_state_dict()
    tensors = {f"base_model.model.{name}": tensor for name, tensor in state.items()}
    name = ADAPTER_SAFE_WEIGHTS_NAME
    return {name: write_tensors(tensors, folder / name)}


def _save_settings(model: PreTrainedModel, folder: Path) -> None:
    """Write everything except the weights.

    The settings of generation are written as the model has them: `save_pretrained` refuses those
    of which loading only warns, such as a temperature without do_sample.
    """
    own: Any = model.generation_config
    if own is None:  # the model generates no text
        model.save_pretrained(folder, state_dict={})
        return
    model.generation_config = GenerationConfig()
    try:
        model.save_pretrained(folder, state_dict={})
    finally:
        model.generation_config = own
    # Without compile_config, as transformers writes the file.
    own.to_json_file(folder / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> str:
    """Write tensors to a safetensors file; return its SHA-256.

    The tensors are written one after another, so that a tensor of a GPU is in main memory only
    while it is written.
    """
    # The format wants the types with the largest elements first, so that all are aligned.
    ordered = sorted(tensors.items(), key=lambda entry: (-entry[1].itemsize, entry[0]))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.itemsize
        shape = list(tensor.shape)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with HashingFile(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            flat = in_main_memory(tensor).contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy())
    return file.sha256()
