"""The update of vLLM's weights: whole weights in place, or an adapter from a folder.

`VLLMEngine.publish` marks the weights of a policy as old. `ServedPolicies` calls these functions
before the policy's next request, and then `WeightCheck` proves that the weights arrived.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfplay.errors import RunError, one_line
from selfplay.models.lora import save_adapter


@torch.no_grad()
def load_weights(engine: Any, weights: Mapping[str, Tensor], *, tied: bool) -> None:
    """Copy whole weights into vLLM's model in place.

    Args:
        engine: vLLM's engine.
        weights: All weights under the names of the Hugging Face model, also the head of a tied
            model: on a CPU, vLLM packs the head separately, and it would stay old.
        tied: True if the head shares its tensor with the embeddings.

    Raises RunError if vLLM refuses the weights.
    """
    (model,) = engine.apply_model(lambda model: model)
    given = dict(weights)
    if tied and not hasattr(model, "lm_head"):
        given.pop("lm_head.weight", None)
    try:
        engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(given.items())})
    except Exception as error:
        raise RunError(f"vLLM refuses the weights: {one_line(error)}") from error


def load_base(engine: Any, model: PreTrainedModel) -> None:
    """Copy the base of a model with an adapter into vLLM's model in place."""
    base = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }
    load_weights(engine, base, tied=is_tied(model))


def load_adapter(engine: Any, model: PreTrainedModel, number: int, folder: Path) -> Any:
    """Load a model's adapter under a number; return the handle for its requests.

    The adapter is written to `folder`, because vLLM reads adapters from files. It replaces an
    adapter with the same number. Raises RunError if vLLM refuses it.
    """
    from vllm.lora.request import LoRARequest

    save_adapter(model, folder, base="base")
    named = {"lora_name": str(number), "lora_int_id": number, "lora_path": str(folder)}
    try:
        engine.add_lora(LoRARequest(**named, load_inplace=True))
    except Exception as error:
        raise RunError(f"vLLM refuses the adapter: {one_line(error)}") from error
    return LoRARequest(**named)


def rank_of(model: PreTrainedModel) -> int | None:
    """Return the rank of a model's adapter; None without one."""
    adapters = getattr(model, "peft_config", None)
    return None if not adapters else max(adapter.r for adapter in adapters.values())


def is_tied(model: PreTrainedModel) -> bool:
    """Return True if a model's head shares its tensor with the embeddings."""
    return bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
