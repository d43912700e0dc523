"""Compares the memory of an update under fake tensors with that of `selfplay plan`.

A model with the widths of a 7B makes one update: forward pass with its activations, logits in
pieces, backward pass, clipping and AdamW, in one process and as the first of 8 ranks (FSDP2 with a
fake process group).
Tensors have shapes and no data, and torch's memory tracker adds up what is alive at the peak. Fake
tensors are on the CPU, because torch without CUDA casts and shards no others; kernels of a GPU may
take workspaces in addition, for which the plan has `reserved`.

Usage: python scripts/check_memory.py [--layers 4] [--tokens 8192] [--cases 0 1 ...] [--json]
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen2Config, Qwen2ForCausalLM

from selfplay.learner import fsdp, logprobs
from selfplay.learner.activation_checkpointing import recompute
from selfplay.learner.learner import FUSED_FROM
from selfplay.learner.logprobs import Scorer, most_logits, read
from selfplay.learner.precision import computing
from selfplay.models.lora import adapted
from selfplay.models.policy_settings import Lora
from selfplay.plan.cluster import GB, load_cluster
from selfplay.plan.memory import Member, learning
from selfplay.plan.model_shape import of_config

BAND = 0.10
"""Largest difference of plan and fake tensors, as a fraction."""
RANK = 16


@dataclass(frozen=True, kw_only=True)
class Case:
    """One update."""

    rank: int
    """Rank of the adapter; 0: all weights."""
    checkpointing: bool
    """True if backward passes compute blocks again."""
    ranks: int
    """Number of learner ranks."""

    def __str__(self) -> str:
        kind = f"adapter of rank {self.rank}" if self.rank else "all weights"
        kept = "checkpointed" if self.checkpointing else "not checkpointed"
        return f"{kind}, {kept}, {self.ranks} rank(s)"


CASES = [
    Case(rank=rank, checkpointing=checkpointing, ranks=ranks)
    for ranks in (1, 8)
    for rank in (0, RANK)
    for checkpointing in (True, False)
]


def config(layers: int) -> Qwen2Config:
    """Return the config of a Qwen2.5-7B with some of its layers."""
    return Qwen2Config(
        num_hidden_layers=layers,
        hidden_size=3584,
        num_attention_heads=28,
        num_key_value_heads=4,
        intermediate_size=18_944,
        vocab_size=152_064,
        tie_word_embeddings=False,
        max_position_embeddings=32_768,
    )


class Tracker(MemTracker):
    """A tracker that sets no hooks on gradients, which weights without a gradient refuse."""

    def _track_module_params_and_buffers(
        self, module: torch.nn.Module, install_grad_hooks: bool = True
    ) -> Any:
        return super()._track_module_params_and_buffers(module, install_grad_hooks=False)


class Update(torch.nn.Module):
    """The passes of a scorer without questions about values, which fake tensors do not have."""

    def __init__(self, scorer: Scorer) -> None:
        super().__init__()
        self.model, self.scorer = scorer.model, scorer

    def forward(self, ids: torch.Tensor, places: torch.Tensor, targets: torch.Tensor) -> Any:
        """Return [C] log-probabilities of the targets at the places."""
        with computing(self.model, bfloat16=self.scorer.bfloat16):
            out = self.model.get_decoder()(input_ids=ids, use_cache=False)
        hidden = out.last_hidden_state.flatten(0, 1)
        head = self.model.get_output_embeddings()
        wanted = hidden[places].to(head.weight.dtype)
        return read(wanted, head, targets, None, entropy=False).logprobs


@contextmanager
def processes(count: int) -> Iterator[Any]:
    """Be the first of `count` processes, of which the others do not exist; yield their mesh."""
    if count == 1:
        yield None
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield init_device_mesh("cpu", (count,))
    finally:
        dist.destroy_process_group()


def measured(case: Case, *, layers: int, tokens: int, completions: int) -> float:
    """Return the bytes at the peak of an update under fake tensors."""
    logprobs._unlike_its_parts = lambda model: ""  # it compares values
    width = torch.bfloat16 if case.rank else torch.float32
    with torch.device("meta"):
        torch.set_default_dtype(width)
        model: Any = Qwen2ForCausalLM(config(layers)).eval()
        torch.set_default_dtype(torch.float32)
        if case.rank:
            model = model.requires_grad_(False)
            model = adapted(model, Lora(rank=case.rank), seed=0, where="policy").eval()
    with processes(case.ranks) as mesh, FakeTensorMode():
        _allocate(model)
        if case.checkpointing:
            recompute(model)
        scorer = Scorer(model, bfloat16=True)
        update: Any = Update(scorer)
        if case.ranks > 1:
            _sharded(update, scorer, mesh)
        trained = [p for p in model.parameters() if p.requires_grad]
        large = case.ranks == 1 and sum(p.numel() for p in trained) >= FUSED_FROM
        optimizer = torch.optim.AdamW(trained, fused=large or None)
        tracker = Tracker()
        tracker.track_external(update, optimizer)
        ids = torch.zeros(4, tokens // 4, dtype=torch.long)
        places = torch.zeros(completions, dtype=torch.long)
        with tracker:
            for _ in range(2):  # AdamW makes its averages in the first step
                for _ in range(2):  # the second micro-batch adds to gradients that exist
                    tracker.reset_mod_stats()
                    update(ids, places, places).mean().backward()
                norm: Any = torch.nn.utils.get_total_norm(
                    p.grad for p in trained if p.grad is not None
                )
                norm = norm.full_tensor() if case.ranks > 1 else norm
                torch.nn.utils.clip_grads_with_norm_(trained, 1.0, norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        peak = tracker.get_tracker_snapshot("peak")
    return float(peak[torch.device("cpu")]["Total"])


def _allocate(model: torch.nn.Module) -> None:
    """Replace a model's tensors on the meta device by fake ones."""
    for module in model.modules():
        for name, tensor in list(module._parameters.items()):
            if tensor is not None:
                made = torch.empty(tensor.shape, dtype=tensor.dtype)
                module._parameters[name] = torch.nn.Parameter(made, tensor.requires_grad)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _sharded(update: Update, scorer: Scorer, mesh: Any) -> None:
    """Shard a model as `fsdp.ShardedScorer` does, with the whole batch as its units see it."""
    made = fsdp.ShardedScorer(scorer.model, scorer, mesh)
    made.forward = lambda *given: Update.forward(update, *given)  # type: ignore[method-assign]
    object.__setattr__(update, "sharded", made)
    update.forward = lambda *given: made(*given)  # type: ignore[method-assign]


def planned(case: Case, *, layers: int, tokens: int, completions: int) -> float:
    """Return the bytes of the plan, without `reserved`."""
    cluster, _ = load_cluster("gpus_8", [])
    shape = of_config(config(layers), where="model")
    layout = replace(
        cluster,
        devices=case.ranks,
        node=case.ranks,
        checkpointing=case.checkpointing,
        logits=most_logits("cuda") // shape.vocabulary,
    )
    member = Member(outline=shape, rank=case.rank, frozen_bytes=2)
    parts = learning({"base": member}, layout, micro_batch=tokens, completions=completions)
    return sum(parts.values()) - parts["reserved"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = {"layers": options.layers, "tokens": options.tokens}
    sizes["completions"] = options.tokens // 2
    rows = []
    for number in options.cases:
        case = CASES[number]
        fake, plan = measured(case, **sizes) / GB, planned(case, **sizes) / GB
        rows.append((str(case), fake, plan))
        if not options.json:
            print(f"{case!s:<42} {fake:>7.1f} GB  plan {plan:>7.1f}  {plan / fake:.2f}", flush=True)
    if options.json:
        print(json.dumps(rows))
    sys.exit(any(abs(plan / fake - 1) > BAND for _, fake, plan in rows))


if __name__ == "__main__":
    main()
