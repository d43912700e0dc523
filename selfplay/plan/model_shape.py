"""Shape of a decoder: parameters, operations and cache, computed from its sizes without weights.

Symbols: q = query heads x head size, k = key-value heads x head size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from selfplay.errors import ConfigError, printable


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a causal language model with gated feed-forward layers."""

    layers: int
    """Number of layers, L."""
    hidden: int
    """Width of the residual stream, h."""
    heads: int
    """Number of query heads."""
    kv_heads: int
    """Number of key-value heads."""
    head_dim: int
    """Width of a head, which may differ from hidden / heads."""
    intermediate: int
    """Width of the feed-forward layer, I."""
    vocabulary: int
    """Number of rows of the embedding, V."""
    tied: bool = False
    """True if the head shares its weights with the input embedding."""
    qkv_bias: bool = False
    """True if the query, key and value projections have a bias."""
    qk_norm: bool = False
    """True if queries and keys have norms with weights."""
    experts: int = 0
    """Number of experts per layer; 0 for a dense model."""
    active_experts: int = 0
    """Number of experts per token, including the shared ones."""
    expert_intermediate: int = 0
    """Width of one expert."""
    extra: int = 0
    """Parameters of a layer that the formula does not count."""
    model: str = field(default="", compare=False)
    """Name or folder that the shape was read from; empty: no saved model. Models of other names may
    have the same shape."""

    @property
    def query(self) -> int:
        """Width of all queries of a token in a layer, q."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of all keys of a token in a layer, k."""
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer: h q + 2 h k + q h + 3 h I + 2 h, and biases, norms and experts."""
        h, q, k = self.hidden, self.query, self.key
        forward = 3 * h * self.intermediate
        if self.experts:
            forward = h * self.experts + 3 * h * self.expert_intermediate * self.experts
        bias = (q + 2 * k) * self.qkv_bias
        norm = 2 * self.head_dim * self.qk_norm
        return 2 * h * q + 2 * h * k + forward + 2 * h + bias + norm + self.extra

    @property
    def active_layer_parameters(self) -> int:
        """Parameters of a layer that one token uses; all of them in a dense model."""
        idle = (self.experts - self.active_experts) * 3 * self.hidden * self.expert_intermediate
        return self.layer_parameters - (idle if self.experts else 0)

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, V h."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Number of all parameters, P; exactly the count of the public checkpoints."""
        embeddings = self.embedding * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + embeddings + self.hidden

    @property
    def matrices(self) -> int:
        """Parameters in matrix products per token, P_mm: with head, without input embedding."""
        return self.layers * self.active_layer_parameters + self.embedding

    def adapter(self, rank: int) -> int:
        """Return the parameters A of a LoRA adapter on all linear layers (2106.09685): r (in + out)
        each."""
        h, q, k, i = self.hidden, self.query, self.key, self.intermediate
        widths = (h + q) + 2 * (h + k) + (q + h) + 2 * (h + i) + (i + h)
        return self.layers * rank * widths

    def cache(self, bytes_per_value: int = 2) -> int:
        """Return the bytes of the key-value cache per token: 2 L k b."""
        return 2 * self.layers * self.key * bytes_per_value

    def forward(self, tokens: float, squares: float, head_tokens: float | None = None) -> float:
        """Return the operations of a forward pass with causal attention: 2 P_mm T + 2 q L sum(s^2).

        Args:
            tokens: Tokens of all sequences together, T.
            squares: Sum of the squares of the sequences' lengths s.
            head_tokens: Tokens whose logits are needed; None: all of them.
        """
        head = tokens if head_tokens is None else head_tokens
        body = self.layers * self.active_layer_parameters
        attention = 2 * squares * self.query * self.layers
        return 2 * body * tokens + 2 * self.embedding * head + attention

    def attention(self, new: float, context: float) -> float:
        """Return the operations of the attention of n `new` tokens after c `context` tokens:
        4 n (c + n/2) q L."""
        return 4 * new * (context + new / 2) * self.query * self.layers

    def activations(self, *, bytes_per_value: int = 2) -> int:
        """Return the bytes per token and layer stored for the backward pass, without checkpointing.

        b [4 h + 2 q + 2 k + 4 I] + 4 n + 8 h, for b bytes per value and n query heads; 8 h is for
        norms in float32, and I is `active_intermediate`. Attention scores are not stored, as in
        FlashAttention (2205.14135).
        """
        kept = 4 * self.hidden + 2 * (self.query + self.key) + 4 * self.active_intermediate
        return bytes_per_value * kept + 4 * self.heads + 8 * self.hidden

    @property
    def active_intermediate(self) -> int:
        """Width of the feed-forward layer, or of all experts that one token uses."""
        return self.active_experts * self.expert_intermediate if self.experts else self.intermediate


def read_outline(model: str, *, where: str = "policy.model") -> ModelShape:
    """Read the shape of a Hugging Face or packaged model, by name or folder, from its config.json.

    The shape of an adapter's folder is that of its base. `where` is the key that names the model,
    for errors. Raises ConfigError if there is no config, or if the model is not a supported
    decoder.
    """
    from transformers import AutoConfig

    from selfplay.models.lora import base_of, check_bases, is_adapter
    from selfplay.models.packaged import base_named, is_packaged, prepare

    folder = Path(model).expanduser()
    if is_adapter(folder):
        check_bases(folder, where=where)
        base = base_named(base_of(folder, where=where))
        return replace(read_outline(base, where=where), model=model)
    source = str(prepare(model, where=where)) if is_packaged(model) else model
    try:
        config = AutoConfig.from_pretrained(
            source, trust_remote_code=False, local_files_only=not _answers(source)
        )
    except (OSError, ValueError) as error:
        # transformers puts the reason into its first line, and advice into the others.
        reason = shorten(printable(str(error).partition("\n")[0]), 160, placeholder=" ...")
        raise ConfigError(
            f"{where}: name a folder with the config.json of the model, which is enough for a "
            f"plan: {where}=FOLDER; the config.json of {model!r} cannot be read: {reason}"
        ) from error
    return replace(of_config(config, where=f"{where} {model!r}"), model=model)


def _answers(source: str) -> bool:
    """Return False for a name of the hub if the hub cannot be reached.

    transformers itself would try again for up to a minute. Without a connection it finds the files
    of earlier downloads, or says that there are none.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    if Path(source).expanduser().exists():
        return True
    try:
        get_hf_file_metadata(hf_hub_url(source, "config.json"))
    except (HfHubHTTPError, ValueError):  # an answer, or no name: transformers reports it
        return True
    except Exception:  # errors of connections; their classes depend on the HTTP library
        return False
    return True


def of_config(config: Any, *, where: str) -> ModelShape:
    """Return the shape of a transformers config; biases and norms come from its first layer.

    `where` names the config in errors. Raises ConfigError if it has no sizes of a decoder.
    """
    text = config.get_text_config()
    try:
        heads = int(text.num_attention_heads)
        sizes: dict[str, Any] = {
            "layers": int(text.num_hidden_layers),
            "hidden": int(text.hidden_size),
            "heads": heads,
            "kv_heads": int(getattr(text, "num_key_value_heads", None) or heads),
            "head_dim": int(getattr(text, "head_dim", None) or text.hidden_size // heads),
            "intermediate": int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
            "vocabulary": int(text.vocab_size),
            "tied": bool(getattr(text, "tie_word_embeddings", False)),
        }
    except AttributeError as error:
        raise ConfigError(f"{where}: not a decoder that a plan supports: {error}") from error
    sizes |= _experts(text)
    names, count = _first_layer(text)
    sizes["qkv_bias"] = any(name.endswith(("q_proj.bias", "qkv_proj.bias")) for name in names)
    sizes["qk_norm"] = any(name.endswith("q_norm.weight") for name in names)
    plain = ModelShape(**sizes)
    return ModelShape(**sizes, extra=count - plain.layer_parameters)


def _experts(text: Any) -> Mapping[str, int]:
    experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None)
    if not experts:
        return {}
    width = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
    return {
        "experts": int(experts),
        "active_experts": int(text.num_experts_per_tok),
        "expert_intermediate": int(width),
    }


def _first_layer(text: Any) -> tuple[list[str], int]:
    """Return the names and the number of the first layer's parameters, without allocating them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    small = AutoConfig.for_model(**{**text.to_dict(), "num_hidden_layers": 1, "layer_types": None})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(small)
    inside = [(n, p.numel()) for n, p in model.named_parameters() if ".layers.0." in n]
    return [name for name, _ in inside], sum(count for _, count in inside)
