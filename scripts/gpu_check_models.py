"""Models of public shapes with random weights, and samples of random tokens, for
`scripts/gpu_check`."""

import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeAlias

import torch

Row: TypeAlias = tuple[str, str, bool | None]
"""Name, value, and true, false or null for passed, failed or no verdict."""
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
SHAPES: Mapping[str, tuple[int, int, int, int, int, int]] = {
    "tiny": (2, 64, 4, 2, 128, 512),
    "0.5B": (24, 896, 14, 2, 4864, 151_936),
    "1.5B": (28, 1536, 12, 2, 8960, 151_936),
    "3B": (36, 2048, 16, 2, 11_008, 151_936),
    "7B": (28, 3584, 28, 4, 18_944, 152_064),
}
"""Layers, width, heads, key-value heads, feed-forward width and vocabulary, as Qwen2.5 has them."""
QWEN3 = (28, 1024, 16, 8, 3072, 151_936) if ON_GPU else SHAPES["tiny"]
"""The same numbers of Qwen3-0.6B, whose heads are 128 wide; a tiny shape without a GPU."""
HEAD = 128 if ON_GPU else 32
"""Width of a head of `QWEN3`."""
GB = 1e9


def synchronize() -> None:
    """Wait for the device."""
    if ON_GPU:
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], rounds: int = 3) -> float:
    """Return the shortest time of some rounds after one that warms up."""
    found = []
    for _ in range(rounds + 1):
        synchronize()
        began = time.perf_counter()
        work()
        synchronize()
        found.append(time.perf_counter() - began)
    return min(found[1:])


def config(name: str) -> Any:
    """Return the config of a model of a shape of Qwen2.5."""
    from transformers import Qwen2Config

    layers, hidden, heads, kv_heads, wide, words = SHAPES[name]
    return Qwen2Config(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=wide,
        vocab_size=words,
        tie_word_embeddings=name not in ("tiny", "7B"),
        max_position_embeddings=32_768,
    )


def model(name: str, dtype: torch.dtype) -> Any:
    """Return a model of a shape of Qwen2.5 with random weights, made on the device."""
    from transformers import Qwen2ForCausalLM

    return _made(Qwen2ForCausalLM, config(name), dtype)


def qwen3(dtype: torch.dtype) -> Any:
    """Return a model of the shape of Qwen3-0.6B with random weights, made on the device."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    layers, hidden, heads, kv_heads, wide, words = QWEN3
    shape = Qwen3Config(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=HEAD,
        intermediate_size=wide,
        vocab_size=words,
        tie_word_embeddings=True,
        max_position_embeddings=40_960,
    )
    return _made(Qwen3ForCausalLM, shape, dtype)


def _made(kind: Any, shape: Any, dtype: torch.dtype) -> Any:
    from selfplay.models.float32_head import compute_logits_in_float32

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(DEVICE):
            made = kind(shape).eval()
    finally:
        torch.set_default_dtype(before)
    compute_logits_in_float32(made)  # as in a run
    return made


def samples(
    count: int, prompt: int, completion: int, words: int, *, prompts: int | None = None
) -> list[Any]:
    """Return samples of random tokens; `prompts`: number of different prompts, all by default."""
    rng = Random(0)
    openings = [_tokens(rng, prompt, words) for _ in range(prompts or count)]
    return [
        _sample(openings[number % len(openings)], _tokens(rng, completion, words), number)
        for number in range(count)
    ]


def conversations(count: int, turns: int, length: int, words: int) -> list[Any]:
    """Return the samples of conversations, whose turns have a message and an answer of `length`
    tokens. All begin with the same message."""
    rng, found = Random(0), []
    opening = _tokens(rng, length, words)
    for number in range(count):
        prompt = opening
        for _ in range(turns):
            answer = _tokens(rng, length, words)
            found.append(_sample(prompt, answer, number))
            prompt = prompt + answer + _tokens(rng, length, words)
    return found


def _tokens(rng: Random, count: int, words: int) -> tuple[int, ...]:
    return tuple(rng.randrange(words) for _ in range(count))


def _sample(prompt: tuple[int, ...], completion: tuple[int, ...], number: int) -> Any:
    from selfplay.types import Sample, Turn

    turn = Turn(
        agent="player_0",
        role="player",
        policy="base",
        version=0,
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=(-1.0,) * len(completion),
        loss_mask=(1,) * len(completion),
        action="",
        reward=0.0,
    )
    return Sample(turn=turn, advantage=float(1 + number % 2), group="1")
