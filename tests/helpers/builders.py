"""Turns, episodes, groups, samples and tiny models for the tests of credit and learning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.types import Episode, Group, Sample, Status, Task, Turn, role_of


def turn(agent: str, reward: float = 0.0, **fields: Any) -> Turn:
    """Return a turn of `agent`, e.g. `solver_1`. By default it has one completion token."""
    ids = tuple(fields.pop("completion_ids", (5,)))
    defaults: dict[str, Any] = {
        "role": role_of(agent),
        "policy": "base",
        "version": 0,
        "prompt_ids": (1, 2),
        "completion_ids": ids,
        "logprobs": (-1.0,) * len(ids),
        "loss_mask": (1,) * len(ids),
        "action": "move",
    }
    return Turn(agent=agent, reward=reward, **{**defaults, **fields})


def episode(*turns: Turn, task: Task | None = None, **fields: Any) -> Episode:
    """Return an episode, by default a finished one."""
    defaults: dict[str, Any] = {"arena": "game_v0", "seed": 0, "status": Status.FINISHED}
    return Episode(task=task or Task(id="t"), turns=turns, **{**defaults, **fields})


def group(*episodes: Episode, name: str = "1.0.0") -> Group:
    """Return a group of these episodes."""
    return Group(id=name, episodes=episodes)


def single_turn_group(*rewards: float) -> list[Group]:
    """Return one group whose episodes have one turn each, by the same agent with these rewards."""
    return [group(*(episode(turn("solver_0", reward)) for reward in rewards))]


def advantages(samples: Sequence[Sample]) -> list[float]:
    """Return the advantages that are single numbers, in order."""
    return [sample.advantage for sample in samples if isinstance(sample.advantage, float)]


def sample(
    prompt: Sequence[int],
    completion: Sequence[int],
    advantage: float | tuple[float, ...],
    **fields: Any,
) -> Sample:
    """Return a sample with these token ids."""
    made = turn("solver_0", prompt_ids=tuple(prompt), completion_ids=tuple(completion), **fields)
    return Sample(turn=made, advantage=advantage, group="1.0.0")


SIZES: Mapping[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
}
"""Settings of a tiny model, with the names that most configs share."""


def llama(seed: int = 0, **settings: int) -> LlamaForCausalLM:
    """Return a tiny grouped-query Llama with 24 tokens: 4 query heads share 2 key-value heads."""
    torch.manual_seed(seed)
    sizes = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64, **settings}
    return LlamaForCausalLM(LlamaConfig(**sizes)).eval()


def mixture(seed: int = 0, **settings: int) -> Qwen3MoeForCausalLM:
    """Return a tiny mixture of experts: each token uses 2 of the 8 experts of a layer."""
    torch.manual_seed(seed)
    sizes = {**SIZES, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 256}
    sizes |= {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2, **settings}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes)).eval()


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return copies of all parameters."""
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    """Return True if all pairs of tensors have exactly equal values."""
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def save_tiny(place: Path, **sizes: int) -> Path:
    """Save a tiny model and its tokenizer in a folder; return the folder."""
    tokenizer = build_tokenizer(["def f("])
    build_model(len(tokenizer), seed=0, **sizes).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place
