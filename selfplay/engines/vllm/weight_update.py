"""The update of vLLM's weights: whole weights in place, or an adapter from a folder.

With tensor parallelism (`is_split`) whole weights pass through a `WeightBuffer` to the shards, and
each shard reads adapters from the folder and keeps its part.

`VLLMEngine.publish` marks the weights of a policy as old. `ServedPolicies` calls these functions
before the policy's next request, and then `WeightCheck` proves that the weights arrived.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from selfplay.engines.vllm.weight_buffer import WeightBuffer
from selfplay.errors import EngineFailed, RunError, one_line
from selfplay.models.lora import save_adapter

T = TypeVar("T")
_LAYER = re.compile(r".*?\.\d+\.")
"""Beginning of the name of a layer's tensor, such as "model.layers.0."."""


@torch.no_grad()
def load_weights(engine: Any, model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Copy whole weights into vLLM's model in place.

    Args:
        engine: vLLM's engine.
        model: The Hugging Face model, which knows the names of its checkpoints.
        weights: All its weights under its own names, also the head of a tied model: on a CPU, vLLM
            packs the head separately, and without its weights the packed head would stay old.

    Raises RunError if vLLM refuses the weights.
    """
    given = dict(weights)
    if is_tied(model) and not all(ask_models(engine, _has_head)):
        given.pop("lm_head.weight", None)
    tensors = checkpoint_tensors(model, given)
    if is_split(engine):
        empty = {name: tensor.to("meta") for name, tensor in given.items()}
        _load_shards(engine, dict(checkpoint_tensors(model, empty)), tensors)
    else:
        try:
            engine.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
        except Exception as error:
            raise RunError(f"vLLM refuses the weights: {one_line(error)}") from error
    if engine.vllm_config.device_config.device_type == "cpu":
        ask_models(engine, _pack_experts)


def checkpoint_tensors(
    model: PreTrainedModel, weights: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield weights under the names and in the shapes of checkpoints, which vLLM reads.

    A model of transformers holds the experts of a mixture in one tensor, and its checkpoint holds
    them one by one. One layer is converted at a time, because some of its tensors are copied then.
    The weights of a model whose checkpoints have its own names pass as they are.
    """
    for _, layer in groupby(weights.items(), key=_layer_of):
        yield from revert_weight_conversion(model, dict(layer)).items()


def _layer_of(entry: tuple[str, Tensor]) -> str:
    found = _LAYER.match(entry[0])
    return found[0] if found else ""


def _pack_experts(model: Any) -> None:
    """Pack the experts of a mixture for the kernel of a CPU, which reads no other form.

    vLLM 0.32.0 packs them only when a model is made, and a reload leaves them as they come.
    """
    for layer in model.modules():
        kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
        if kernel is not None and hasattr(layer, "w13_weight"):
            kernel.fused_experts.process_weights_after_loading(layer)


def _load_shards(
    engine: Any, sizes: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Copy whole weights into the shards of an engine, each of which takes its part.

    `sizes` has the same tensors on the device meta.
    """
    with closing(WeightBuffer(sizes)) as buffer:
        _check_answers(engine, "begin_load", buffer.path, buffer.size)
        for places in buffer.pieces(tensors):
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
    load_weights(engine, model, base)


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
