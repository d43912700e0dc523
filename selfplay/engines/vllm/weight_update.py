"""The update of vLLM's weights: whole weights in place, or an adapter from a folder.

With tensor parallelism (`is_split`) whole weights pass through a `WeightBuffer` to the shards, and
each shard reads adapters from the folder and keeps its part.

`VLLMEngine.publish` marks the weights of a policy as old. `ServedPolicies` calls these functions
before the policy's next request, and then `WeightCheck` proves that the weights arrived.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfplay.engines.vllm.weight_buffer import WeightBuffer
from selfplay.errors import EngineFailed, RunError, one_line
from selfplay.models.lora import save_adapter

T = TypeVar("T")


@torch.no_grad()
def load_weights(engine: Any, weights: Mapping[str, Tensor], *, tied: bool) -> None:
    """Copy whole weights into vLLM's model in place.

    Args:
        engine: vLLM's engine.
        weights: All weights under the names of the Hugging Face model, also the head of a tied
            model: on a CPU, vLLM packs the head separately, and without its weights the packed head
            would stay old.
        tied: True if the head shares its tensor with the embeddings.

    Raises RunError if vLLM refuses the weights.
    """
    given = dict(weights)
    if tied and not all(ask_models(engine, _has_head)):
        given.pop("lm_head.weight", None)
    if is_split(engine):
        _load_shards(engine, given)
        return
    try:
        engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(given.items())})
    except Exception as error:
        raise RunError(f"vLLM refuses the weights: {one_line(error)}") from error


def _load_shards(engine: Any, weights: Mapping[str, Tensor]) -> None:
    """Copy whole weights into the shards of an engine, each of which takes its part."""
    with closing(WeightBuffer(weights)) as buffer:
        _check_answers(engine, "begin_load", buffer.path, buffer.size)
        for places in buffer.pieces():
            _check_answers(engine, "load_piece", places)
        _check_answers(engine, "end_load")


def ask_models(engine: Any, question: Callable[[Any], T]) -> list[T]:
    """Return the answer of the model in each shard; raise EngineFailed if a shard is dead."""
    return _called(engine, "apply_model", question)


def _check_answers(engine: Any, method: str, *arguments: Any, what: str = "weights") -> None:
    """Call a method of `ShardWeights` in all shards; raise RunError for the first failure."""
    reasons: list[str | None] = _called(engine, method, *arguments)
    for reason in reasons:
        if reason is not None:
            raise RunError(f"vLLM refuses the {what}: {reason}")


def _called(engine: Any, method: str, *arguments: Any) -> list[Any]:
    """Return the results of a method in all shards."""
    try:
        return list(engine.collective_rpc(method, args=arguments))
    except Exception as error:  # vLLM has no type of its own for dead processes
        raise EngineFailed(f"vLLM failed during a load of weights: {one_line(error)}") from error


def is_split(engine: Any) -> bool:
    """Return True if an engine's model is divided into shards, each in a process of its own."""
    return int(engine.vllm_config.parallel_config.tensor_parallel_size) > 1


def _has_head(model: Any) -> bool:
    return hasattr(model, "lm_head")


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
    request = LoRARequest(**named, load_inplace=True)
    if is_split(engine):
        _check_answers(engine, "load_adapter", request, what="adapter")
        return LoRARequest(**named)
    try:
        engine.add_lora(request)
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
