"""The outline of a model, from its config on this machine, without weights."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from selfplay.errors import ConfigError, printable
from selfplay.models import packaged


def outline(model: str) -> PreTrainedModel | None:
    """Return the modules of a model without weights; None if its config is not on this machine."""
    config = _config(model)
    if config is None:
        return None
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            made: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, trust_remote_code=False
            )
    except Exception:  # the file can make transformers fail in any way
        return None  # the fault is reported when the model is loaded
    return made


def positions(model: str) -> int | None:
    """Return the context length of a model; None if it has no limit, or no config on this
    machine."""
    config = _config(model)
    if config is None:
        return None
    found: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return found


def outputs(model: str) -> int | None:
    """Return the number of outputs of a classifier; None without a config on this machine."""
    config = _config(model)
    return None if config is None else config.num_labels


def config_of(source: str, *, local_files_only: bool = False) -> PretrainedConfig:
    """Return the config of a name or folder, as transformers loads it.

    Raises the errors of transformers if there is none. Raises ConfigError if the config names an
    attention kernel of a hub: transformers would download and import its code, whatever
    `trust_remote_code` says.
    """
    config: PretrainedConfig = AutoConfig.from_pretrained(
        source, local_files_only=local_files_only, trust_remote_code=False
    )
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    for part in parts:
        kernel = str(getattr(part, "_attn_implementation", None))
        if "/" in kernel:
            raise ConfigError(
                f"config.json names the attention kernel {printable(kernel)}, which is code of a "
                "hub; remove attn_implementation from it"
            )
    return config


def _config(model: str) -> PretrainedConfig | None:
    """Return the config of a model; None if it is not on this machine or cannot be read."""
    source = _on_this_machine(model)
    if source is None:
        return None
    try:
        return config_of(source, local_files_only=True)
    except Exception:  # the file can make transformers fail in any way
        return None  # the fault is reported when the model is loaded


def _on_this_machine(model: str) -> str | None:
    """Return the name or folder to read a config from; None for a packaged model outside the
    cache."""
    if not packaged.is_packaged(model):
        return str(Path(model).expanduser()) if model.startswith("~") else model
    found = packaged.cached(model)
    return str(found) if found else None
