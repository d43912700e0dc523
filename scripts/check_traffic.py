"""Compares the memory traffic of an update under fake tensors with that of `selfplay plan`.

An operation that is no matrix product counts as a kernel that reads its inputs from memory and
writes its results there. A model makes the forward and backward passes of one micro-batch with
tensors that have shapes and no data, and the bytes of all these operations are added up. Matrix
products and attention are left out, because operations limit them. Differences between models give
the bytes per token and layer.

Usage: python scripts/check_traffic.py [--json]
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from check_memory import RANK, Update, _allocate
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from selfplay.learner import logprobs
from selfplay.learner.activation_checkpointing import recompute
from selfplay.learner.logprobs import Scorer, most_logits
from selfplay.learner.precision import mixed_precision
from selfplay.models.float32_head import compute_logits_in_float32
from selfplay.models.lora import adapted
from selfplay.models.policy_settings import Lora
from selfplay.plan.model_shape import ModelShape, of_config
from selfplay.plan.traffic import training

BAND = 0.10
"""Largest difference of plan and count, as a fraction."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
FREE = ("detach", "_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty")
"""Operations that neither read nor write."""
WRITES = ("zeros", "zeros_like", "new_zeros", "ones_like", "full", "fill_", "zero_")
"""Operations that only write."""
READS_PART = ("embedding", "gather", "index", "index_select")
"""Operations that read as many bytes as they write, of a larger tensor."""


class Attention(torch.autograd.Function):
    """Attention as one kernel, which reads and writes nothing here."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return a result of attention."""
        ctx.save_for_backward(q, k, v)
        return torch.empty_like(q)

    @staticmethod
    def backward(ctx: Any, made: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients."""
        return tuple(map(torch.empty_like, ctx.saved_tensors))


def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Any:
    """Return the result of attention, whose inputs autocast converts."""
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (each.to(torch.bfloat16) for each in (q, k, v))
    return Attention.apply(q, k, v).transpose(1, 2).contiguous(), None


class Traffic(TorchDispatchMode):
    """A mode that adds up the bytes of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count its bytes."""
        made = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        computes = func._schema.name.startswith("aten::") and not func.is_view
        if computes and name not in (*PRODUCTS, *FREE):
            read, wrote = (sum(map(_stored, tree_leaves(each))) for each in ((args, kwargs), made))
            read = 0 if name in WRITES else wrote if name in READS_PART else read
            self.bytes += read + wrote
        return made


def _stored(value: Any) -> int:
    """Return the bytes of a tensor in memory; an expanded dimension is stored once."""
    if not isinstance(value, Tensor):
        return 0
    size = value.element_size()
    for length, stride in zip(value.shape, value.stride(), strict=True):
        size *= length if stride else 1
    return size


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a model and of its micro-batch."""

    hidden: int = 512
    heads: int = 8
    kv_heads: int = 4
    wide: int = 1024
    norms: bool = False
    """True for a Qwen3, whose queries and keys have norms; False for a Qwen2."""
    words: int = 1000
    layers: int = 1
    tokens: int = 1024
    read: int = 16
    """Tokens whose logits are needed."""

    def config(self) -> Any:
        """Return the config of the model, whose heads are 64 wide."""
        kind: Any = Qwen3Config if self.norms else Qwen2Config
        return kind(
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=64,
            intermediate_size=self.wide,
            vocab_size=self.words,
            tie_word_embeddings=True,
            attn_implementation="counted",
        )

    def outline(self) -> ModelShape:
        """Return the model's shape for the plan."""
        return replace(of_config(self.config(), where="model"), layers=1)


CASES = {
    "Qwen2, width 512": Sizes(),
    "Qwen3, width 256, 12 heads": Sizes(hidden=256, heads=12, kv_heads=2, norms=True),
    "Qwen2, feed-forward width 3,072": Sizes(wide=3072, kv_heads=8),
}


def counted(sizes: Sizes, rank: int) -> int:
    """Return the bytes of a micro-batch with an adapter, or with all weights if `rank` is 0. Blocks
    are computed again in the backward pass."""
    ALL_ATTENTION_FUNCTIONS.register("counted", attend)
    torch.set_default_dtype(torch.bfloat16 if rank else torch.float32)
    try:
        with torch.device("meta"):
            made: Any = (Qwen3ForCausalLM if sizes.norms else Qwen2ForCausalLM)(sizes.config())
    finally:
        torch.set_default_dtype(torch.float32)
    compute_logits_in_float32(made)
    if rank:
        with torch.device("meta"):
            made = adapted(made.requires_grad_(False), Lora(rank=rank), seed=0, where="x")
    with FakeTensorMode(), mixed_precision(made.eval(), bfloat16=True), computes_in_parts():
        _allocate(made)
        recompute(made)
        update: Any = Update(Scorer(made, bfloat16=True))
        ids = torch.zeros(4, sizes.tokens // 4, dtype=torch.long)
        places = torch.zeros(sizes.read, dtype=torch.long)
        update(ids, places, places).mean().backward()  # gradients exist in later micro-batches
        with Traffic() as traffic:
            update(ids, places, places).mean().backward()
    return traffic.bytes


@contextmanager
def computes_in_parts() -> Iterator[None]:
    """Leave out the scorer's test of a model, which compares values."""
    before = logprobs._unlike_its_parts
    logprobs._unlike_its_parts = lambda model: ""
    try:
        yield
    finally:
        logprobs._unlike_its_parts = before


def compared(sizes: Sizes, rank: int) -> dict[str, tuple[float, float]]:
    """Return (counted, planned) bytes of one more token in a layer, and of one more logit."""

    def count(**changed: Any) -> int:
        return counted(replace(sizes, **changed), rank)

    tokens = 2 * sizes.tokens
    deeper = count(layers=2, tokens=tokens) - count(layers=2)
    token = (deeper - (count(tokens=tokens) - count())) / sizes.tokens
    words = 100_000
    piece = most_logits("cpu") // words
    more = count(words=words, read=4 * piece) - count(words=words, read=2 * piece)
    outline = sizes.outline()
    wordy = replace(outline, vocabulary=words)

    def plan(outline: ModelShape, tokens: float, read: float, logits: int) -> float:
        return training(outline, rank, tokens, read, passes=0, checkpointing=True, logits=logits)

    return {
        "token and layer": (token, plan(outline, 1, 0, 0)),
        "logit": (more / (2 * piece * words), plan(wordy, 0, piece, piece) / (piece * words)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for name, sizes in CASES.items():
        for rank in (0, RANK):
            kind = f"adapter of rank {rank}" if rank else "all weights"
            for what, (count, plan) in compared(sizes, rank).items():
                rows.append((f"{name}, {kind}, bytes per {what}", count, plan))
                if not options.json:
                    print(
                        f"{rows[-1][0]:<70} {count:>9,.0f}  plan {plan:>9,.0f}  {plan / count:.2f}"
                    )
    if options.json:
        print(json.dumps(rows))
    sys.exit(any(abs(plan / count - 1) > BAND for _, count, plan in rows))


if __name__ == "__main__":
    main()
