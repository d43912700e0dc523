"""Low-rank adapters over one frozen model that is in memory once (LoRA, 2106.09685).

Every policy has modules of its own over the same frozen tensors, with its adapter in them. No
adapter is switched on and off: engines and learners use these modules like any model.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from selfplay.errors import ConfigError, RunError, nearest, one_line, require_package
from selfplay.models.main_memory import in_main_memory
from selfplay.models.policy_settings import Lora
from selfplay.models.weights_file import save_adapter_weights

CONFIG = "adapter_config.json"
"""File that marks a folder as an adapter."""
BASES = "bases"
"""Folder of a checkpoint with the bases of its adapters that exist nowhere else."""


def adapted_layers(lora: Lora, model: PreTrainedModel, *, where: str) -> list[str]:
    """Return the names, without paths, of the layers of a model that get an adapter.

    Raises ConfigError for a target that is no linear layer of the model.
    """
    known = sorted({path.rpartition(".")[2] for path in _linear(model)})
    targets = known if lora.targets is None else lora.targets
    for target in targets:
        if target not in known:
            raise ConfigError(
                f"{where}.targets: {type(model).__name__} has no linear layer {target!r}; "
                f"{nearest(target, known)}"
            )
    if not known:
        raise ConfigError(f"{where}: {type(model).__name__} has no linear layer to adapt")
    return sorted(set(targets))


def require_peft(where: str) -> None:
    """Raise ConfigError if the package that adapters need is not installed."""
    require_package("peft", "lora", where)


def adapted(base: PreTrainedModel, lora: Lora, *, seed: int, where: str) -> PreTrainedModel:
    """Return a model of its own modules over the tensors of `base`, with a new adapter in them.

    Only the adapter has gradients. Its weights are float32 over a base of any precision, because
    they are trained.

    Raises ConfigError for layers that cannot be adapted.
    """
    require_peft(where)
    from peft import LoraConfig

    model = _over(base)
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=adapted_layers(lora, model, where=where),
        # GPT-2's layers have transposed weights.
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        task_type="CAUSAL_LM",
    )
    # The adapter has a random stream of its own, because a resumed run has made other draws before.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model.add_adapter(settings)
        except ValueError as error:  # peft refuses some layers of some models, such as Mamba's
            raise ConfigError(
                f"{where}.targets: the package peft cannot adapt these layers of "
                f"{type(model).__name__}; name others ({one_line(error)})"
            ) from error
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Return a frozen copy of a model with copies of its trained parameters and its buffers; other
    parameters are shared."""
    fixed = (tensor for tensor in model.parameters() if not tensor.requires_grad)
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in fixed})
    return twin.eval().requires_grad_(False)


def main_memory_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy whose trained tensors and buffers are in main memory, over the same frozen
    tensors."""
    copies: dict[int, Any] = {}
    for weight in model.parameters():
        copies[id(weight)] = (
            nn.Parameter(in_main_memory(weight, copy=True), False)
            if weight.requires_grad
            else weight
        )
    for buffer in model.buffers():
        copies[id(buffer)] = in_main_memory(buffer, copy=True)
    return copy.deepcopy(model, copies)


def save_adapter(model: PreTrainedModel, folder: Path, *, base: str) -> dict[str, str]:
    """Write the adapter in peft's layout, with the name or folder of its base.

    Returns the SHA-256 of the weights by file name.
    """
    hashes = save_adapter_weights(model, folder)
    path = folder / CONFIG
    content = json.loads(path.read_text(encoding="utf-8"))
    content["target_modules"] = sorted(content["target_modules"])  # from a set, in any order
    _write_settings(path, content, base=base)
    return hashes


def _write_settings(path: Path, content: Mapping[str, Any], *, base: str) -> None:
    named = {**content, "base_model_name_or_path": base}
    path.write_text(json.dumps(named, indent=2, sort_keys=True), encoding="utf-8")


def name_copied_base(folder: Path, checkpoint: Path, *, where: str) -> None:
    """Let the adapter of a copied checkpoint name the copy of its base, if the checkpoint has one.

    Args:
        folder: Folder of the adapter.
        checkpoint: Folder that the copied checkpoint will have.
        where: Name of the owner of the adapter, for errors.
    """
    settings = _settings(folder, where=where)
    named = Path(str(settings["base_model_name_or_path"])).name
    if (folder.parent.parent / BASES / named).is_dir():
        copied = (checkpoint / BASES / named).absolute()
        _write_settings(folder / CONFIG, settings, base=str(copied))


def load_adapter(model: PreTrainedModel, folder: Path, *, where: str) -> None:
    """Replace the adapter's weights by those of a folder.

    Raises RunError if the folder has no adapter or one of another shape, and ConfigError if its
    config does not describe a plain LoRA adapter.
    """
    from peft import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    if not is_adapter(folder):
        raise RunError(f"{where}: no adapter in {folder} ({CONFIG} is missing)")
    _settings(folder, where=where)
    saved = load_peft_weights(str(folder), device="cpu")
    saved = {name.removeprefix("base_model.model."): tensor for name, tensor in saved.items()}
    own = get_peft_model_state_dict(model)
    for name in dict.fromkeys([*own, *saved]):
        ours, theirs = (list(w[name].shape) if name in w else "absent" for w in (own, saved))
        if ours != theirs:
            raise RunError(
                f"{where}: the adapter in {folder} has another shape: {name} is {theirs}, the "
                f"policy's is {ours}; resume with the policy.lora that the run began with"
            )
    set_peft_model_state_dict(model, saved)


def merge(model: PreTrainedModel) -> None:
    """Add the adapter of a model to the tensors of its base, in place.

    The base that `adapted` was given then computes like the model. The model must not be used
    afterwards.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in list(model.modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()


def is_adapter(folder: Path) -> bool:
    """Return True if a folder holds an adapter and no whole model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def merged(folder: Path, load: Callable[[str], PreTrainedModel], *, where: str) -> PreTrainedModel:
    """Return the whole model of an adapter's folder and its base; `load` loads the base.

    Raises ConfigError without the package peft, and for an adapter that cannot be loaded.
    """
    require_peft(where)
    from peft import PeftModel

    check_bases(folder, where=where)
    model: Any = load(base_of(folder, where=where))
    whole: PreTrainedModel = PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    return whole.requires_grad_(True)


def check_bases(folder: Path, *, where: str) -> None:
    """Raise ConfigError if the bases of an adapter form a cycle: an adapter is its own base."""
    seen, each = set[Path](), folder
    while is_adapter(each):
        if each.resolve() in seen:
            raise ConfigError(
                f"{where}: {folder / CONFIG} names a base that is an adapter over this one"
            )
        seen.add(each.resolve())
        each = Path(base_of(each, where=where))


def base_of(folder: Path, *, where: str) -> str:
    """Return the name or folder of the base of an adapter's folder.

    If the checkpoint of the adapter has a copy of the base, it is this copy, because the adapter's
    config names the place of the checkpoint before a move.
    """
    named = str(_settings(folder, where=where)["base_model_name_or_path"])
    sibling = folder.parent.parent / BASES / Path(named).name
    return str(sibling) if sibling.is_dir() else named


def _settings(folder: Path, *, where: str) -> Mapping[str, Any]:
    """Return the config of an adapter. Raises ConfigError if peft would import a module for it."""
    path = folder / CONFIG
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        kind = settings["peft_type"], settings["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{where}: {path} is not the config of an adapter") from error
    if kind[0] != "LORA" or settings.get("megatron_config") or settings.get("auto_mapping"):
        raise ConfigError(
            f"{where}: {path} describes no plain LoRA adapter; only peft_type LORA without "
            "megatron_config and auto_mapping is loaded"
        )
    return dict(settings)


def _over(base: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of the modules of `base` over the same tensors."""
    tensors = chain(base.parameters(), base.buffers())
    return copy.deepcopy(base, {id(tensor): tensor for tensor in tensors})


def _linear(model: PreTrainedModel) -> Iterator[str]:
    head = model.get_output_embeddings()
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D) and module is not head:
            yield path
