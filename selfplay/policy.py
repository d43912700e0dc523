"""A policy: a causal language model, its tokenizer, and whether it learns."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from selfplay.errors import ConfigError, RunError
from selfplay.tokens import ChatRenderer


@dataclass(kw_only=True)
class Policy:
    """The weights behind one or several roles."""

    name: str
    """Its name in the population."""
    model: PreTrainedModel
    """The model; the embedded engine samples from the very same tensors."""
    renderer: ChatRenderer
    """Its token seam."""
    learn: bool = True
    """Whether the learner changes it."""
    version: int = 0
    """How many updates the weights have seen."""
    reference: PreTrainedModel | None = field(default=None, repr=False)
    """A frozen copy of the initial weights, where an objective asks for one."""

    def freeze_reference(self) -> None:
        """Keep a copy of the present weights as the reference of the KL term."""
        self.reference = copy.deepcopy(self.model).eval().requires_grad_(False)

    def save(self, folder: Path) -> None:
        """Write model and tokenizer in Hugging Face layout."""
        self.model.save_pretrained(folder)
        self.renderer.tokenizer.save_pretrained(folder)

    def load_weights(self, folder: Path) -> None:
        """Replace the weights by those of a folder; RunError if it has another architecture."""
        where = f"policy {self.name!r}"
        saved = load_model(str(folder), where=where, dtype="auto").state_dict()
        mine = self.model.state_dict()
        for key in dict.fromkeys([*mine, *saved]):
            # Compared beforehand: torch would copy all that fits before it complains.
            ours, theirs = _shape(mine, key), _shape(saved, key)
            if ours != theirs:
                raise RunError(
                    f"{where}: the weights in {folder} are of another architecture: {key} is "
                    f"{theirs}, the policy's is {ours}; resume with the policy.model that the run "
                    "began with"
                )
        self.model.load_state_dict(saved)


def load_policy(
    name: str, *, model: str, learn: bool = True, dtype: str = "float32", device: str = "auto"
) -> Policy:
    """A policy from a Hugging Face name or folder.

    Raises ConfigError, in one line, if there is no such model or its tokenizer cannot chat.
    """
    where = f"policy {name!r}"
    place = _device(device, where)
    loaded = load_model(model, where=where, dtype=dtype)
    try:
        torch.nn.Module.to(loaded, place)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"{where}: device {device!r}: {_first_line(error)}") from error
    if not learn:
        loaded.requires_grad_(False)
    try:
        tokenizer = AutoTokenizer.from_pretrained(_expanded(model))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: no tokenizer in {model!r}: {_first_line(error)}") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what is made of a folder without one
        raise ConfigError(
            f"{where}: no tokenizer in {model!r}; save_pretrained the tokenizer there"
        )
    renderer = ChatRenderer(tokenizer, where=where)
    rows = int(loaded.get_input_embeddings().weight.shape[0])  # type: ignore[index]
    if len(tokenizer) > rows:
        raise ConfigError(
            f"{where}: the tokenizer of {model!r} has {len(tokenizer)} tokens, its model only "
            f"{rows}; they do not belong together"
        )
    return Policy(name=name, model=loaded, renderer=renderer, learn=learn)


def load_model(model: str, *, where: str, dtype: str) -> PreTrainedModel:
    """The causal language model of a name or folder."""
    looks_local = model.startswith((".", "/", "~")) or Path(model).exists()
    if looks_local and not (Path(model).expanduser() / "config.json").is_file():
        raise ConfigError(
            f"{where}: no model in folder {model!r} (config.json is missing); "
            "set policy.model to a Hugging Face name or to a folder that save_pretrained wrote"
        )
    kind: Any = dtype
    if dtype != "auto":
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
            raise ConfigError(
                f"{where}: unknown dtype {dtype!r}; choose float32, bfloat16 or float16"
            )
    try:
        loading: Any = AutoModelForCausalLM.from_pretrained(
            _expanded(model), dtype=kind, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, SafetensorError, StrictDataclassError) as error:
        raise ConfigError(f"{where}: cannot load model {model!r}: {_first_line(error)}") from error
    loaded: PreTrainedModel = loading[0]
    absent = sorted(loading[1]["missing_keys"])
    if absent:  # transformers would train on with random numbers in their place
        raise ConfigError(
            f"{where}: the weights in {model!r} lack {len(absent)} tensors of the model, "
            f"{absent[0]} among them; its config.json is of another model"
        )
    return loaded


def _expanded(model: str) -> str:
    return str(Path(model).expanduser()) if model.startswith("~") else model


def _shape(weights: Mapping[str, torch.Tensor], key: str) -> str:
    return str(list(weights[key].shape)) if key in weights else "absent"


def _device(device: str, where: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"{where}: unknown device {device!r}") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{where}: device {device!r} asked for, but this machine has no GPU")
    return chosen


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
