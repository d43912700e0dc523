"""Tests that the embedded engine serves causal LMs with ordinary attention, and refuses others."""

from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from selfplay.errors import ConfigError
from selfplay.types import Request
from tests.helpers.engine_requests import END, answer, engine, serving, teacher

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
}


HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}


def made(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SIZES, **HEADS, head_dim=8)).eval()
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS)).eval()
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24}
    ends: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": END}
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, **sizes, **ends)).eval()


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_other_models_and_kinds_of_attention(kind: str, attention: str) -> None:
    other = made(kind)
    other.set_attn_implementation(attention)
    requests = [
        Request(id=n, policy="p", prompt_ids=(3 + n % 5, 4) * (1 + n % 3), seed=n, max_tokens=6)
        for n in range(12)
    ]
    found = answer(engine(other), requests)
    for request in requests:
        expected = teacher(other, request, found[request.id], 1.0)
        torch.testing.assert_close(
            torch.tensor(found[request.id].logprobs), expected, atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_a_finished_row_does_not_disturb_the_batch(kind: str) -> None:
    """A long prompt with few new tokens ends early, at the largest position of the batch."""
    serves = serving({"p": made(kind)}, {"p": []}, prefill_tokens=1)
    long = Request(id=0, policy="p", prompt_ids=(5,) * 20, seed=0, max_tokens=4)
    short = [
        Request(id=n, policy="p", prompt_ids=(6, 7), seed=n, max_tokens=20) for n in range(1, 20)
    ]
    found = answer(serves, [long, *short])
    assert len(found[0].completion_ids) == 4
    for request in (long, short[0]):
        torch.testing.assert_close(
            torch.tensor(found[request.id].logprobs),
            teacher(made(kind), request, found[request.id], 1.0),
            atol=1e-4,
            rtol=1e-4,
        )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (MistralForCausalLM(MistralConfig(**SIZES, **HEADS, sliding_window=8)), "sliding-window"),
        (MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1)), "recu"),
        (
            Qwen3ForCausalLM(
                Qwen3Config(
                    **SIZES, **HEADS, use_sliding_window=True, sliding_window=8, max_window_layers=1
                )
            ),
            "sliding_attention",
        ),
    ],
)
def test_a_model_without_ordinary_attention_is_refused(other: PreTrainedModel, words: str) -> None:
    with pytest.raises(ConfigError, match=f"policy 'p'.*{words}"):
        engine(other)


@pytest.mark.gpu
def test_log_probabilities_on_a_gpu_are_those_of_the_model() -> None:
    served: Any = made("qwen3")
    served.cuda()
    requests = [
        Request(id=n, policy="p", prompt_ids=(3 + n % 5, 4), seed=n, max_tokens=6)
        for n in range(12)
    ]
    found = answer(engine(served), requests)
    judge: Any = served.cpu()
    for request in requests:
        expected = teacher(judge, request, found[request.id], 1.0)
        got = torch.tensor(found[request.id].logprobs)
        torch.testing.assert_close(got, expected, atol=1e-2, rtol=1e-2)
