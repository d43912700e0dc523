"""Sections of `scripts/gpu_check` at the shape of Qwen3-0.6B: tokens per second, and packing."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from gpu_check_models import (
    HEAD,
    ON_GPU,
    QWEN3,
    Row,
    conversations,
    qwen3,
    samples,
    seconds,
)

LAYERS, WIDTH, HEADS, KV_HEADS, WIDE, WORDS = QWEN3
LOADS = ((16_384, 4), (2048, 32)) if ON_GPU else ((64, 4),)
"""Tokens of a sample and number of samples of an update."""
RANK = 16
"""Rank of the adapter."""


def throughput() -> Iterator[Row]:
    """Yield the tokens per second of updates."""
    for rank in (0, RANK):
        for length, count in LOADS:
            yield _updated(rank, length, count)


def sampling(vllm: bool) -> Iterator[Row]:
    """Yield the tokens per second of sampling with the embedded engine, and with vLLM if it is
    installed."""
    from selfplay.engines.transformers import TransformersEngine

    dtype = torch.bfloat16 if ON_GPU else torch.float32
    counts = (64, 512) if ON_GPU else (4,)
    for count in counts:
        engine = TransformersEngine(max_rows=count)
        engine.serve("base", qwen3(dtype), [WORDS - 1])
        yield _sampled("embedded engine", engine, count)
    if vllm:
        yield from _sampled_by_vllm(counts, qwen3(dtype))


def _sampled_by_vllm(counts: Sequence[int], network: Any) -> Iterator[Row]:
    from selfplay.engines.vllm.engine import VLLMEngine

    began = time.perf_counter()
    engine = VLLMEngine(max_rows=max(counts), max_length=2048, async_scheduling="auto")
    engine.serve("base", network, [WORDS - 1])
    try:
        yield ("vLLM, start", f"{time.perf_counter() - began:.0f} s", None)
        for count in counts:
            yield _sampled("vLLM", engine, count)
        engine.drain_metrics()
        one, weights = samples(1, 8, 1, WORDS), network.state_dict()
        plain = seconds(lambda: _answered(engine, one, 1))

        def updated() -> None:
            engine.publish("base", weights, 1)
            _answered(engine, one, 1)

        took = seconds(updated) - plain
        apart = engine.drain_metrics()["proof_difference"]
        size = sum(each.nbytes for each in weights.values()) / 1e9
        yield ("vLLM, new weights", f"{size:.2g} GB in {took:.2f} s, {apart:.1e} nats apart", None)
    finally:
        engine.close()


def _updated(rank: int, length: int, count: int) -> Row:
    """Return the row of updates on samples of `length` tokens, nearly all of which are learned."""
    learner = _learner(rank, length * max(1, 16_384 // length))
    prompt = 16
    given = samples(count, prompt, length - prompt, WORDS)
    took = seconds(lambda: learner.update(given, step=1), rounds=2)
    tokens = length * count
    what = f"adapter of rank {rank}" if rank else "all weights"
    value = f"{tokens / took:,.0f} tokens/s"
    if ON_GPU:
        value += f", {_flops(length) * tokens / took / 1e12:.0f} TFLOPS"
        value += f", {torch.cuda.max_memory_allocated() / 1e9:.1f} GB"
    return (f"update, {what}, {count} samples of {length:,} tokens", value, None)


def _flops(length: int) -> float:
    """Return the operations per token of forward and backward passes over all weights, without
    recomputation: 6 for each weight of a matrix, and 6 for each pair of a layer's attention."""
    block = WIDTH * HEAD * (2 * HEADS + 2 * KV_HEADS) + 3 * WIDTH * WIDE
    return 6.0 * (LAYERS * block + WIDTH * WORDS) + 6.0 * LAYERS * HEADS * HEAD * length


def _learner(rank: int, most: int, **settings: Any) -> Any:
    """Return a learner of a new model: all weights in float32, or an adapter over bfloat16."""
    from selfplay.learner.learner import Learner
    from selfplay.learner.learner_settings import LearnerSettings
    from selfplay.learner.objective import PolicyLoss
    from selfplay.models.lora import Lora, adapted

    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    network = qwen3(torch.bfloat16 if rank and ON_GPU else torch.float32)
    if rank:
        network = adapted(network.requires_grad_(False), Lora(rank=rank), seed=0, where="x").eval()
    return Learner(
        network, objective=PolicyLoss(), settings=LearnerSettings(max_tokens=most, **settings)
    )


def _sampled(name: str, engine: Any, count: int) -> Row:
    """Return the row of sampling with an engine, all requests at once."""
    prompt, new = (256, 128) if ON_GPU else (8, 8)
    given = samples(count, prompt, 1, WORDS)
    took = seconds(lambda: _answered(engine, given, new), rounds=1)
    about = f"sampling, {name}, {count} rows of {prompt} + {new} tokens"
    return (about, f"{count * new / took:,.0f} tokens/s", None)


def _answered(engine: Any, given: Sequence[Any], new: int) -> None:
    """Let an engine answer the prompts of samples, without cached prefixes."""
    from selfplay.types import Request

    engine.forget()
    for number, sample in enumerate(given):
        asked = tuple(sample.turn.prompt_ids)
        engine.add(Request(id=number, policy="base", prompt_ids=asked, seed=number, max_tokens=new))
    done = 0
    while done < len(given):
        done += len(engine.step())


def shared_prefixes() -> Iterator[Row]:
    """Yield the time of updates with shared prefixes in one row and with a row for each sample."""
    large: Mapping[str, list[Any]] = {
        "1 prompt of 4,096 x 16 completions of 256": samples(16, 4096, 256, WORDS, prompts=1),
        "4 prompts of 512 x 8 completions of 512": samples(32, 512, 512, WORDS, prompts=4),
        "4 conversations of 8 turns of 256 + 256": conversations(4, 8, 256, WORDS),
    }
    small = {"1 prompt of 32 x 4 completions of 8": samples(4, 32, 8, WORDS, prompts=1)}
    for name, given in (large if ON_GPU else small).items():
        yield from _packed(name, given)


def _packed(name: str, given: list[Any]) -> Iterator[Row]:
    """Yield a row for each way to pack samples: its time, and the difference of its
    log-probabilities from those of a row for each sample."""
    ways = [("rows", "sdpa"), ("trie", "sdpa"), ("auto", "sdpa")]
    if ON_GPU:
        ways += [("trie", "flex_attention"), ("auto", "flex_attention")]
    padded, wanted = 0.0, torch.empty(0)
    for way, kernel in ways:
        learner = _learner(0, 32_768 if ON_GPU else 1024, packing=way, attention=kernel, lr=0.0)
        logprobs = torch.tensor([each for row in learner.logprobs(given) for each in row])
        took = seconds(partial(learner.update, given, step=1), rounds=2)
        if way == "rows":
            padded, wanted = took, logprobs
            yield (f"{name}: a row for each", f"{took:.3f} s", None)
            continue
        apart = float((logprobs - wanted).abs().mean())
        memory = f", {torch.cuda.max_memory_allocated() / 1e9:.0f} GB" if ON_GPU else ""
        value = f"{took:.3f} s, {padded / took:.2f} x, {apart:.1e} nats apart{memory}"
        yield (f"{name}: {way}, {kernel}", value, apart < (5e-2 if ON_GPU else 1e-4))
