"""A model made of weights that were sent, without its files of weights.

If a worker read the files first, it would have the weights twice, and a third time in main memory
if the model is on a GPU.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from selfplay.errors import RunError
from selfplay.models.float32_head import compute_logits_in_float32
from selfplay.models.model_outline import config_of


def received(
    source: str, weights: Mapping[str, Tensor], *, where: str, dtype: Any, device: torch.device
) -> PreTrainedModel | None:
    """Return the model of a folder's or name's config with copies of these weights.

    None if the model's files hold more than parameters: saved buffers, or quantised weights.

    Args:
        source: Name or folder, as transformers loads it.
        weights: Every parameter by name.
        where: Name of the policy in errors.
        dtype: Type of the weights. "auto": the type that the config names, or else that of the
            weights.
        device: Device of the model.

    Raises RunError if a parameter is missing or has another shape.
    """
    config = config_of(source)
    if getattr(config, "quantization_config", None) is not None:
        return None
    if dtype == "auto":
        dtype = config.dtype or next(iter(weights.values())).dtype
    with _without_data():
        made: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=False
        )
    state = made.state_dict()
    if any(name in state for name, _ in made.named_buffers()):
        return None
    _fill(made, weights, device, where=where)
    made.to(device)  # type: ignore[arg-type]  # the buffers
    if made.can_generate():
        try:
            found = GenerationConfig.from_pretrained(source)
        except OSError:  # without the file it is that of the config
            pass
        else:
            made.generation_config = found
    compute_logits_in_float32(made)
    return made.eval()


@contextmanager
def _without_data() -> Iterator[None]:
    """Give modules that are made inside parameters without data, but buffers with theirs."""
    kind: Any = Module
    register = kind.register_parameter

    def without_data(module: Module, name: str, parameter: Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    kind.register_parameter = without_data
    try:
        yield
    finally:
        kind.register_parameter = register


def _fill(
    model: PreTrainedModel, weights: Mapping[str, Tensor], device: torch.device, *, where: str
) -> None:
    """Replace the parameters of a model by copies of the weights; those that modules share stay
    shared."""
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        if name not in weights:
            raise RunError(
                f"{where}: no weights of {name} were sent; the driver's model has another "
                "architecture than the config that the worker reads"
            )
        if weights[name].shape != parameter.shape:
            raise RunError(
                f"{where}: {name} was sent with the shape {list(weights[name].shape)}, and the "
                f"config that the worker reads has {list(parameter.shape)}"
            )
    made = {
        parameter: Parameter(weights[name].to(device=device, dtype=parameter.dtype, copy=True))
        for name, parameter in named.items()
    }
    for module in model.modules():
        for name, own in module._parameters.items():
            if own is not None:
                module._parameters[name] = made[own]
