"""Compares the memory of an update under fake tensors with that of `selfplay plan`.

A model with the widths of a 7B makes one update: forward pass with its activations, logits in
pieces, backward pass, clipping and AdamW, in one process and as the first of 8 ranks (FSDP2 with a
fake process group).
Tensors have shapes and no data, and torch's memory tracker adds up what is alive at the peak. Fake
tensors are on the CPU, because torch without CUDA casts and shards no others; kernels of a GPU may
take workspaces in addition, for which the plan has `reserved`. Pieces of logits have the size that
they have on a GPU.

With `--recipes`, the updates are those of `configs/recipe`, with all layers, all policies that a
rank learns and the batch that the plan expects. The script then prints if they fit by both.

Usage: python scripts/check_memory.py [--layers 4] [--tokens 8192] [--cases 0 1 ...] [--json]
       python scripts/check_memory.py --recipes [gpu_1_lora_7b ...]
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen2Config, Qwen2ForCausalLM

from selfplay.cli.plan import plan as predict
from selfplay.learner import fsdp, logprobs
from selfplay.learner.activation_checkpointing import recompute
from selfplay.learner.learner import FUSED_FROM
from selfplay.learner.logprobs import Scorer, most_logits, read
from selfplay.learner.precision import computing, mixed_precision
from selfplay.models.lora import adapted
from selfplay.models.policy_settings import Lora
from selfplay.plan.cluster import GB, load_cluster
from selfplay.plan.memory import Member, learning
from selfplay.plan.model_shape import of_config

BAND = 0.10
"""Largest difference of plan and fake tensors, as a fraction."""
RANK = 16
LOGITS = most_logits("cuda")
"""Logits of a piece."""
WHOLE = 28
"""Layers of a Qwen2.5-7B."""
RECIPES = Path(__file__).resolve().parents[1] / "configs/recipe"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One update."""

    rank: int
    """Rank of the adapter; 0: all weights."""
    checkpointing: bool
    """True if backward passes compute blocks again."""
    ranks: int
    """Number of learner ranks."""
    policies: int = 1
    """Number of policies that a rank learns, one after another."""
    base: Literal[2, 4] = 2
    """Bytes of a number of an adapter's base."""

    def __str__(self) -> str:
        kind = f"adapter of rank {self.rank}" if self.rank else "all weights"
        kind += " over float32" if self.base == 4 else ""
        kept = "checkpointed" if self.checkpointing else "not checkpointed"
        several = f", {self.policies} policies" if self.policies > 1 else ""
        return f"{kind}, {kept}, {self.ranks} rank(s){several}"


CASES = [
    Case(rank=rank, checkpointing=checkpointing, ranks=ranks)
    for ranks in (1, 8)
    for rank in (0, RANK)
    for checkpointing in (True, False)
]
CASES += [
    Case(rank=RANK, checkpointing=checkpointing, ranks=1, base=4) for checkpointing in (True, False)
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
    """A tracker of the whole update's peak.

    It sets no hooks on gradients, because weights without a gradient refuse them. It keeps no peak
    for each module, because that takes a loop over all modules after every operation.
    """

    def _track_module_params_and_buffers(
        self, module: torch.nn.Module, install_grad_hooks: bool = True
    ) -> Any:
        return super()._track_module_params_and_buffers(module, install_grad_hooks=False)

    def forget_peak(self) -> None:
        """Begin a new peak."""
        self._peak_mem.clear()
        self._peak_mem_snap.clear()

    def _update_peak_stats(self, peak_state: Any) -> None:
        for device, now in self._curr_mem_snap.items():
            if self._peak_mem.get(device, 0) < now["Total"]:
                self._peak_mem[device] = now["Total"]
                self._peak_mem_snap[device] = dict(now)


class Update(torch.nn.Module):
    """The passes of a scorer without tests of values, because fake tensors have no values."""

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
    """Act as the first of `count` processes, although the others do not exist; yield their mesh."""
    if count == 1:
        yield None
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield init_device_mesh("cpu", (count,))
    finally:
        dist.destroy_process_group()


@dataclass(kw_only=True)
class Learning:
    """A policy with its optimizer."""

    update: Update
    optimizer: torch.optim.Optimizer
    trained: list[torch.nn.Parameter]

    def step(self, tracker: Tracker, tokens: int, completions: int, *, sharded: bool) -> None:
        """Make an update of two micro-batches; the second one adds to gradients that exist."""
        ids = torch.zeros(4, tokens // 4, dtype=torch.long)
        places = torch.zeros(completions, dtype=torch.long)
        for _ in range(2):
            tracker.reset_mod_stats()
            self.update(ids, places, places).mean().backward()
        norm: Any = torch.nn.utils.get_total_norm(
            p.grad for p in self.trained if p.grad is not None
        )
        norm = norm.full_tensor() if sharded else norm
        torch.nn.utils.clip_grads_with_norm_(self.trained, 1.0, norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def measured(case: Case, *, layers: int, tokens: int, completions: int) -> float:
    """Return the bytes at the peak of the second update of each policy under fake tensors."""
    logprobs._unlike_its_parts = lambda model: ""  # it compares values
    logprobs.most_logits = lambda device: LOGITS
    models = [_model(case, layers) for _ in range(case.policies)]
    with processes(case.ranks) as mesh, FakeTensorMode():
        learners = [_learning(model, case, mesh) for model in models]
        tracker = Tracker()
        for each in learners:
            tracker.track_external(each.update, each.optimizer)
        with tracker, mixed_precision(*models, bfloat16=True):
            for _ in range(2):
                # In the first updates, AdamW makes its averages, and distributed tensors compute
                # shapes with whole tensors, which exist as fake tensors alone.
                tracker.forget_peak()
                for each in learners:
                    each.step(tracker, tokens, completions, sharded=case.ranks > 1)
        peak = tracker.get_tracker_snapshot("peak")
    return float(peak[torch.device("cpu")]["Total"])


def _model(case: Case, layers: int) -> Any:
    """Return a model on the meta device."""
    with torch.device("meta"):
        short = case.rank and case.base == 2
        torch.set_default_dtype(torch.bfloat16 if short else torch.float32)
        model: Any = Qwen2ForCausalLM(config(layers)).eval()
        torch.set_default_dtype(torch.float32)
        if case.rank:
            model = model.requires_grad_(False)
            model = adapted(model, Lora(rank=case.rank), seed=0, where="policy").eval()
    return model


def _learning(model: Any, case: Case, mesh: Any) -> Learning:
    """Return a policy of fake tensors; call it in a `FakeTensorMode`."""
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
    return Learning(update=update, optimizer=optimizer, trained=trained)


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
    """Shard a model with `fsdp.ShardedScorer`, and let its forward pass be that of the update."""
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
        logits=LOGITS // shape.vocabulary,
    )
    member = Member(outline=shape, rank=case.rank, frozen_bytes=case.base)
    parts = learning({"base": member}, layout, micro_batch=tokens, completions=completions)
    return sum(parts.values()) - parts["reserved"]


def check_recipe(name: str) -> bool:
    """Print a line about a recipe with the experiment of its comment; return True if it fits."""
    text = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
    experiment = re.findall(r"\+experiment=\S+", text)[0]
    gpus = re.findall(r"gpu_(\d+)_", name)[0]
    with tempfile.TemporaryDirectory() as folder:
        config(WHOLE).save_pretrained(folder)
        asked = [experiment, f"+recipe={name}", f"policy.model={folder}"]
        found = predict([f"cluster=gpus_{gpus}"], asked)
    cluster, memory = found.cluster, found.memory
    learned = [member for member in found.members.values() if member.learns]
    case = Case(
        rank=learned[0].rank,
        checkpointing=cluster.checkpointing,
        ranks=cluster.sharded,
        policies=1 if learned[0].rank else len(learned),
    )
    tokens, completions = map(int, found.largest_pass)
    sizes = {"tokens": tokens, "completions": completions}
    others = sum(memory.learning[part] for part in ("reference", "engine", "reserved"))
    fake = measured(case, layers=WHOLE, **sizes) + others
    total = sum(memory.learning.values())
    fits = fake <= memory.limit and memory.fits
    summary = f"{name:<20} {case!s:<52} {tokens:>6} tokens {fake / GB:>6.1f} GB"
    summary += f"  plan {total / GB:>6.1f}  {total / fake:.2f}  of {memory.limit / GB:.1f}"
    print(f"{summary}: {'fits' if fits else 'DOES NOT FIT'}", flush=True)
    return fits


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)))
    parser.add_argument("--json", action="store_true")
    names = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    parser.add_argument("--recipes", nargs="*", choices=names)
    options = parser.parse_args()
    if options.recipes is not None:
        fit = [check_recipe(name) for name in options.recipes or names]
        sys.exit(not all(fit))
    sizes = {"layers": options.layers, "tokens": options.tokens}
    sizes["completions"] = options.tokens // 2
    rows = []
    for number in options.cases:
        case = CASES[number]
        fake, plan = measured(case, **sizes) / GB, planned(case, **sizes) / GB
        rows.append((str(case), fake, plan))
        if not options.json:
            print(f"{case!s:<56} {fake:>7.1f} GB  plan {plan:>7.1f}  {plan / fake:.2f}", flush=True)
    if options.json:
        print(json.dumps(rows))
    sys.exit(any(abs(plan / fake - 1) > BAND for _, fake, plan in rows))


if __name__ == "__main__":
    main()
