"""A policy: a causal language model and its tokenizer, trained or frozen."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeAlias, Unpack

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from selfplay.config.instantiate import call
from selfplay.errors import ConfigError, RunError, first_line
from selfplay.models import load_report, packaged
from selfplay.models import lora as adapters
from selfplay.models.chat_template import require_template
from selfplay.models.float32_head import compute_logits_in_float32
from selfplay.models.model_outline import config_of
from selfplay.models.policy_settings import ChatSettings, PolicySettings
from selfplay.models.received_model import received
from selfplay.models.renderer import ChatRenderer
from selfplay.models.weights_file import save_model


@dataclass(kw_only=True, eq=False)
class Base:
    """A frozen model, in memory once, over which several policies have adapters.

    `load_policy` makes it; checkpoints save it if it exists nowhere else.
    """

    model: PreTrainedModel
    """The model without an adapter."""
    renderer: ChatRenderer
    """Renderer of its prompts."""
    source: str
    """Name or folder that the model was loaded from."""
    kept: str | None = None
    """Name of the base's folder in a checkpoint, for a base that exists nowhere else, such as a
    warm start, whose cache may be emptied; None for other bases."""

    def save(self, folder: Path) -> dict[str, str]:
        """Write model and tokenizer in Hugging Face layout; return the SHA-256 of large files."""
        return save_model(self.model, folder) | self.renderer.save_tokenizer(folder)


Bases: TypeAlias = MutableMapping[tuple[str, str, str, str | None], Base]
"""Bases by (model, dtype, device, chat template)."""


@dataclass(kw_only=True)
class Policy:
    """The weights that play one or several roles.

    `load_policy` makes it. An engine samples from it, a learner trains it, and checkpoints save it.
    """

    name: str
    """Name of the policy in the population."""
    model: PreTrainedModel
    """The model; the embedded engine samples from the same tensors."""
    renderer: ChatRenderer
    """Renderer of its prompts."""
    learn: bool = True
    """True if a learner changes the weights."""
    version: int = 0
    """Number of updates of the weights."""
    from_sent: bool = False
    """True if the model was made of weights that were sent, and its files of weights were not
    read."""
    base: Base | None = field(default=None, repr=False)
    """Base of the adapter; None if all weights are the policy's own."""
    teacher: str | Mapping[str, str] | None = None
    """Teacher, or the teachers by role: see `PolicySettings.teacher`."""
    reference: PreTrainedModel | None = field(default=None, repr=False)
    """Reference policy of a KL term, if the objective needs the initial weights or an EMA."""

    def freeze_reference(self, *, moves: bool = False) -> None:
        """Keep the initial weights as the reference of the KL term.

        The reference of an adapter is its base, which costs nothing. A reference that moves (an
        EMA) needs its own copy of the trained tensors: of the adapter, or of the whole model.
        """
        if self.base is not None and not moves:
            self.reference = self.base.model
        else:
            self.reference = adapters.frozen_copy(self.model)

    def save(self, folder: Path, *, base: str | None = None) -> dict[str, str]:
        """Write model and tokenizer in Hugging Face layout, or the adapter in peft's.

        Args:
            folder: Target folder.
            base: Base that the adapter names; None for the one that was loaded.

        Returns the SHA-256 of large files by name.
        """
        if self.base is None:
            hashes = save_model(self.model, folder)
        else:
            hashes = adapters.save_adapter(self.model, folder, base=base or self.base.source)
        return hashes | self.renderer.save_tokenizer(folder)

    def copied(self) -> "Policy":
        """Return a copy to save, which later optimizer steps do not change.

        Trained weights and buffers are copied to main memory; frozen weights are shared.
        """
        renderers = [self.renderer, *([self.base.renderer] if self.base is not None else [])]
        for renderer in renderers:
            _ = renderer.tokenizer_files  # made in this thread: a tokenizer saves itself alone
        return replace(self, model=adapters.main_memory_copy(self.model), reference=None)

    def load_weights(self, folder: Path) -> None:
        """Replace the weights by those of a folder. Raises RunError for another architecture."""
        where = f"policy {self.name!r}"
        if self.base is not None:
            adapters.load_adapter(self.model, folder, where=where)
            return
        saved = load_model(str(folder), where=where, dtype="auto").state_dict()
        own = self.model.state_dict()
        for key in dict.fromkeys([*own, *saved]):
            # Shapes are compared first: torch would copy matching tensors before it raises errors.
            ours, theirs = _shape(own, key), _shape(saved, key)
            if ours != theirs:
                raise RunError(
                    f"{where}: the weights in {folder} are of another architecture: {key} is "
                    f"{theirs}, the policy's is {ours}; resume with the policy.model that the run "
                    "began with"
                )
        self.model.load_state_dict(saved)


def load_policy(
    name: str,
    *,
    bases: Bases | None = None,
    seed: int = 0,
    sent: Mapping[str, torch.Tensor] | None = None,
    **settings: Any,
) -> Policy:
    """Return a policy with its model.

    Args:
        name: Name of the policy in the population.
        bases: Bases that policies with adapters share; new ones are added.
        seed: Seed of a new adapter's A.
        sent: Weights of all parameters by name, in place of the weights in the model's files, for a
            policy without an adapter. A model whose files hold more than parameters is loaded from
            them.
        settings: Those of `PolicySettings`, by name, with a model.

    Raises ConfigError, in one line, if there is no such model or its tokenizer cannot chat.
    """
    where = f"policy {name!r}"
    own: PolicySettings = call(PolicySettings, settings, where=where)
    model, learn, lora, device = str(own.model), own.learn, own.lora, own.device
    load = partial(
        load_with_renderer,
        model,
        where=where,
        dtype=own.dtype,
        device=device,
        **own.chat,
    )
    if lora is None:
        made = None
        if sent is not None:
            made = _received(model, sent, where=where, dtype=own.dtype, device=device)
        loaded, renderer = load(loaded=made)
        if not learn:
            loaded.requires_grad_(False)
        return Policy(
            name=name,
            model=loaded,
            renderer=renderer,
            learn=learn,
            from_sent=made is not None,
            teacher=own.teacher,
        )
    shared = {} if bases is None else bases
    key = (model, own.dtype, device, own.chat_template)
    if key not in shared:
        loaded, renderer = load()
        loaded.eval().requires_grad_(False)
        source = str(Path(model).expanduser().resolve()) if _looks_local(model) else model
        shared[key] = Base(model=loaded, renderer=renderer, source=source)
    base = shared[key]
    loaded = adapters.adapted(base.model, lora, seed=seed, where=f"{where}: lora")
    if not learn:
        loaded.requires_grad_(False)
    renderer = base.renderer.configured(
        where=where,
        chat_template_kwargs=own.chat_template_kwargs,
        keep_thinking=own.keep_thinking,
    )
    return Policy(
        name=name, model=loaded, renderer=renderer, learn=learn, base=base, teacher=own.teacher
    )


def load_with_renderer(
    model: str,
    *,
    where: str,
    dtype: str,
    device: str,
    loaded: PreTrainedModel | None = None,
    **chat: Unpack[ChatSettings],
) -> tuple[PreTrainedModel, ChatRenderer]:
    """Return the model of a name or folder on its device, and its renderer.

    `loaded` is the model, if it is on the device already, and `chat` has the settings of its
    prompts. Raises ConfigError, in one line that begins with `where`, for a model that
    cannot be used.
    """
    target = device_of(device, where)
    source = loadable(model, where=where)
    # The tokenizer comes first, so that a missing chat template is an error before all weights
    # are loaded. Other errors of the tokenizer are raised after the model is loaded, because an
    # error of the model explains more.
    tokenizer, problem = read_tokenizer(source)
    if tokenizer is not None:
        if chat.get("chat_template"):
            tokenizer.chat_template = chat["chat_template"]
        require_template(tokenizer, where=where)
    if loaded is None:
        loaded = load_model(model, where=where, dtype=dtype)
        try:
            torch.nn.Module.to(loaded, target)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"{where}: device {device!r}: {_reason(error)}") from error
    if tokenizer is None:
        raise ConfigError(f"{where}: no tokenizer in {model!r}{problem}")
    rows = int(loaded.get_input_embeddings().weight.shape[0])  # type: ignore[index]
    ends = end_tokens(loaded, rows, where=where)
    renderer = ChatRenderer(
        tokenizer,
        where=where,
        end_ids=ends,
        chat_template_kwargs=chat.get("chat_template_kwargs"),
        keep_thinking=chat.get("keep_thinking", False),
    )
    check_tokenizer(tokenizer, rows, model=model, where=where)
    return loaded, renderer


def check_tokenizer(tokenizer: Any, rows: int, *, model: str, where: str) -> None:
    """Raise ConfigError if a tokenizer has more tokens than its model has embeddings."""
    if len(tokenizer) > rows:
        raise ConfigError(
            f"{where}: the tokenizer of {model!r} has {len(tokenizer)} tokens, its model only "
            f"{rows}; they do not belong together"
        )


def read_tokenizer(source: str) -> tuple[Any, str]:
    """Return the tokenizer of a name or folder, and "".

    If there is none, return None and the end of an error message instead.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # the files of the folder can make transformers fail in any way
        return None, f": {_reason(error)}"
    # For a folder without a tokenizer, transformers makes one that has special tokens only.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        return None, "; save_pretrained the tokenizer there"
    return tokenizer, ""


def end_tokens(model: PreTrainedModel, rows: int, *, where: str) -> tuple[int, ...]:
    """Return the tokens that end a completion by the model's generation_config.json.

    Args:
        model: A model; without the file, its config.json is read instead.
        rows: Number of tokens of the model.
        where: Name of the policy in errors.
    Raises:
        ConfigError: For a value that is not a token of the model.
    """
    found = getattr(model.generation_config, "eos_token_id", None)
    ids = found if isinstance(found, list | tuple) else [] if found is None else [found]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < rows:
            raise ConfigError(
                f"{where}: eos_token_id in its generation_config.json has {repr(token)[:60]}; the "
                f"tokens of the model are 0 to {rows - 1}"
            )
    return tuple(ids)


def load_model(
    model: str, *, where: str, dtype: str, loader: Any = AutoModelForCausalLM
) -> PreTrainedModel:
    """Return the causal language model of a name or folder, in main memory.

    Args:
        model: Hugging Face name, folder or packaged model. The folder of an adapter means its base
            merged with it.
        where: Beginning of error messages.
        dtype: Type of the weights; "auto": that of the files.
        loader: Class of transformers with `from_pretrained` that makes the model.
    Raises:
        ConfigError: In one line, for a model that cannot be loaded, or whose weights lack tensors
            or have other shapes.
    """
    source = loadable(model, where=where)
    folder = Path(source)
    if adapters.is_adapter(folder):
        return adapters.merged(
            folder,
            lambda base: load_model(packaged.base_named(base), where=where, dtype=dtype),
            where=where,
        )
    check_folder(model, where=where)
    kind = _type_of(dtype, where)
    try:
        with load_report.held_back():
            config_of(source)
            loading: Any = loader.from_pretrained(
                source,
                dtype=kind,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # the error below says which
                weights_only=True,
                trust_remote_code=False,
            )
    except UnpicklingError as error:
        raise ConfigError(
            f"{where}: cannot load model {model!r}: its weights are a pickle that holds more than "
            "tensors; use weights in safetensors"
        ) from error
    except Exception as error:  # the files of the folder can make transformers fail in any way
        raise ConfigError(f"{where}: cannot load model {model!r}: {_reason(error)}") from error
    loaded: PreTrainedModel = loading[0]
    absent = sorted(loading[1]["missing_keys"])
    if absent:  # transformers would use random numbers for them
        raise ConfigError(
            f"{where}: the weights in {model!r} lack {len(absent)} tensors of the model, "
            f"{absent[0]} among them; its config.json is of another model"
        )
    if unlike := sorted(loading[1]["mismatched_keys"]):
        name, stored, wanted = unlike[0]
        raise ConfigError(
            f"{where}: {len(unlike)} tensors in {model!r} have another shape than the model, such "
            f"as {name} with {list(stored)} and not {list(wanted)}; its config.json is of another "
            "model"
        )
    compute_logits_in_float32(loaded)
    return loaded


def check_folder(model: str, *, where: str) -> None:
    """Raise ConfigError if a model is named by a folder that has neither a model nor an adapter."""
    folder = Path(model).expanduser()
    if not _looks_local(model) or adapters.is_adapter(folder):
        return
    if not (folder / "config.json").is_file():
        problem = f"no model in folder {model!r} (config.json is missing)"
        if not folder.exists():
            problem = f"no folder {model!r}"
        raise ConfigError(
            f"{where}: {problem}; name a model of Hugging Face, a folder that "
            "save_pretrained wrote, or RUN/checkpoints/STEP/policies/NAME"
        )


def _received(
    model: str, sent: Mapping[str, torch.Tensor], *, where: str, dtype: str, device: str
) -> PreTrainedModel | None:
    """Return the model of a name or folder with weights that were sent; None for an adapter's
    folder, and for a model whose files hold more than weights."""
    source = loadable(model, where=where)
    if adapters.is_adapter(Path(source)):
        return None
    kind, target = _type_of(dtype, where), device_of(device, where)
    try:
        return received(source, sent, where=where, dtype=kind, device=target)
    except RunError:
        raise
    except Exception as error:  # the config of the folder can make transformers fail in any way
        raise ConfigError(f"{where}: cannot load model {model!r}: {_reason(error)}") from error


def _type_of(dtype: str, where: str) -> Any:
    """Return the type of weights of a name; "auto" stays."""
    if dtype == "auto":
        return dtype
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ConfigError(f"{where}: unknown dtype {dtype!r}; choose float32, bfloat16 or float16")
    return kind


def _looks_local(model: str) -> bool:
    if packaged.is_packaged(model):
        return False
    # A name of the hub has at most one slash.
    return model.startswith((".", "/", "~")) or model.count("/") > 1 or Path(model).exists()


def loadable(model: str, *, where: str) -> str:
    """Return the name or folder that transformers loads; a packaged model is prepared first."""
    if packaged.is_packaged(model):
        return str(packaged.prepare(model, where=where))
    return str(Path(model).expanduser()) if model.startswith("~") else model


def _shape(weights: Mapping[str, torch.Tensor], key: str) -> str:
    return str(list(weights[key].shape)) if key in weights else "absent"


def device_of(device: str, where: str) -> torch.device:
    """Return the device of a name; auto is the GPU if there is one. Raises ConfigError if it is
    absent."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"{where}: unknown device {device!r}") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{where}: device {device!r} asked for, but this machine has no GPU")
    return chosen


def _reason(error: BaseException) -> str:
    line = first_line(error)
    if "gated repo" in line:
        return f"{line.rstrip('.')}; accept its licence on huggingface.co and set HF_TOKEN"
    return line
