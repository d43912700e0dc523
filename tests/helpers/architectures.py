"""Tiny models of many architectures with random weights, made from the configs of transformers."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 48
TABLE = 64
"""Number of rows in the position tables of the models that have one."""
SHORT_ROWS = 32
"""Largest number of tokens for which longrope and dynamic RoPE use short-row frequencies."""
WINDOW = 16

_LLAMA: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": TABLE,
    "head_dim": 8,
    "sliding_window": None,
    "pad_token_id": 0,
}
_PHI = {name: value for name, value in _LLAMA.items() if name != "head_dim"}
_GPT: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": TABLE,
}
_OPT: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": TABLE,
    "pad_token_id": 0,
}
_NEO: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "window_size": WINDOW,
    "max_position_embeddings": TABLE,
}
_EXPERTS: Mapping[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    """Return settings of rotary positions, with a small base, so that few tokens are enough."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **settings}}


_LONGROPE = rope(
    "longrope",
    short_factor=[1.0] * 4,
    long_factor=[4.0] * 4,
    original_max_position_embeddings=SHORT_ROWS,
)

CONFIGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", _LLAMA),
    "llama_yarn": (
        "llama",
        {**_LLAMA, **rope("yarn", factor=4.0, original_max_position_embeddings=SHORT_ROWS)},
    ),
    "llama_dynamic": (
        "llama",
        {**_LLAMA, "max_position_embeddings": SHORT_ROWS, **rope("dynamic", factor=4.0)},
    ),
    "qwen2": ("qwen2", _LLAMA),
    "qwen3": ("qwen3", _LLAMA),
    "qwen3_moe": ("qwen3_moe", {**_LLAMA, **_EXPERTS}),
    "gemma": ("gemma", _LLAMA),
    "gemma2": ("gemma2", {**_LLAMA, "sliding_window": WINDOW}),
    "gemma3": ("gemma3_text", {**_LLAMA, "sliding_window": WINDOW}),
    "mistral": ("mistral", {**_LLAMA, "sliding_window": WINDOW}),
    "phi3": ("phi3", _PHI),
    "phi3_longrope": (
        "phi3",
        {**_PHI, "original_max_position_embeddings": SHORT_ROWS, **_LONGROPE},
    ),
    "gpt2": ("gpt2", _GPT),
    "gpt_bigcode": ("gpt_bigcode", _GPT),
    "gptj": ("gptj", {**_GPT, "rotary_dim": 4}),
    "codegen": ("codegen", {**_GPT, "rotary_dim": 4}),
    "ctrl": ("ctrl", {**_GPT, "dff": 48}),
    "openai_gpt": ("openai-gpt", _GPT),
    "gpt_neo": ("gpt_neo", {**_NEO, "attention_types": [[["global", "local"], 1]]}),
    "gpt_neo_global": ("gpt_neo", {**_NEO, "attention_types": [[["global"], 2]]}),
    "gpt_neox": ("gpt_neox", {**_OPT, "intermediate_size": 48}),
    "opt": ("opt", {**_OPT, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "biogpt": ("biogpt", {**_OPT, "intermediate_size": 48}),
    "bert": ("bert", {**_OPT, "intermediate_size": 48, "is_decoder": True}),
    "roberta": ("roberta", {**_OPT, "intermediate_size": 48, "is_decoder": True}),
    "bloom": (
        "bloom",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "mpt": (
        "mpt",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "n_layers": 2,
            "n_heads": 4,
            "max_seq_len": TABLE,
        },
    ),
    "falcon": ("falcon", {**_OPT, "alibi": False, "new_decoder_architecture": True}),
    "falcon_alibi": ("falcon", {**_OPT, "alibi": True, "new_decoder_architecture": False}),
    "doge": ("doge", {**_LLAMA, "keep_window_size": WINDOW}),
    "xlnet": (
        "xlnet",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    ),
    "modernbert": (
        "modernbert-decoder",
        {
            **{name: value for name, value in _LLAMA.items() if name != "sliding_window"},
            **{"local_attention": WINDOW, "global_attn_every_n_layers": 2},
            **{"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
        },
    ),
}


def made(kind: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return a model with weights that are large enough for attention to affect the result."""
    name, settings = CONFIGS[kind]
    model: Any = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**settings))
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(0.25 * torch.randn(parameter.shape, generator=stream))
    found: PreTrainedModel = model.to(dtype).eval()
    return found
