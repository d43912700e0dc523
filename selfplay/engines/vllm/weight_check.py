"""Checks that an engine samples with the weights that it received.

An update that does not arrive raises no error by itself: the run would continue and learn from
completions of other weights. Sums of the engine's own tensors show every lost update of whole
weights. Log-probabilities show that the engine computes like the model, also with adapters.

With tensor parallelism each shard of the engine reports the sums of its own tensors. The sums of
all shards together are compared with those of the whole weights.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

CLEARLY = 4
"""If an update changes the model by more than this many times the usual difference, the engine must
be nearer to the new model than to the old one."""
LENGTH = 64
"""Number of tokens of the longest test prompt."""
WORSE = 3
"""After the first load, a difference of up to this many times that of the first load is allowed."""
PIECE = 2**24
"""Number of elements of a tensor that are summed at once."""
Sums: TypeAlias = tuple[int, int]
"""Sum of a tensor's elements and sum of their squares, both modulo 2**64. The bits of each element
are read as an integer."""
PROMPTS = 8
"""Number of test prompts, each the beginning of the next."""
EXPERTS = {
    ".experts.routed_experts.w13_weight": ".experts.gate_up_proj",
    ".experts.routed_experts.w2_weight": ".experts.down_proj",
    ".block_sparse_moe.gate.weight": ".mlp.gate.weight",
}
"""End of the name of a mixture's tensor in vLLM to its end in the Hugging Face model; both have
all experts of a layer in one tensor."""


class WeightMismatch(Exception):
    """Raised if an engine's tensors or log-probabilities are not those of the weights."""


class WeightCheck:
    """Compares an engine's log-probabilities after fixed prompts with those of the model.

    There are two tests. First, the mean absolute difference must be within a tolerance, or, after
    the first load, within `WORSE` times that load's difference if this is more. Second,
    if an update changed the model by much more than the usual difference, the engine must be
    nearer to the new model than to the old one. An engine that is exact to 1e-6 nats thus shows
    that an update of 1e-5 nats was lost. A lost update below the rounding error cannot be seen.
    If one of N shards keeps its old part, the log-probabilities are wrong by about 1 / sqrt(N) of
    the whole update, because the parts change them independently. So the second test multiplies the
    model's change by 1 / sqrt(N).
    """

    def __init__(self, tolerance: float, *, shards: int = 1) -> None:
        """Args:
        tolerance: The maximum mean absolute difference in nats.
        shards: Number of the engine's shards.
        """
        self.tolerance, self._part = tolerance, 1 / sqrt(shards)
        self.usual = 0.0
        """Largest mean absolute difference so far, in nats."""
        self._was: Tensor | None = None
        self._limit = tolerance

    def check(self, said: Sequence[Mapping[int, float]], model: Tensor) -> float:
        """Return the mean absolute difference in nats; raise WeightMismatch if a test fails.

        Args:
            said: The engine's log-probabilities of some next tokens, per prompt.
            model: [prompts, vocabulary] log-probabilities of the model.
        """
        rows = torch.tensor([row for row, nats in enumerate(said) for _ in nats])
        tokens = torch.tensor([token for nats in said for token in nats])
        engine = torch.tensor([value for nats in said for value in nats.values()])
        own = model[rows, tokens]
        error = float((engine - own).abs().mean())
        moved = 0.0 if self._was is None else float((own - self._was[rows, tokens]).abs().mean())
        if not error <= self._limit:  # also if the error is NaN
            raise WeightMismatch(
                f"its log-probabilities differ from the model's by {error:.2g} on average, and "
                f"the tolerance is {self._limit:g}"
            )
        if self._was is None:
            self._limit = max(self.tolerance, WORSE * error)
        part = moved * self._part
        if part > CLEARLY * self.usual and error > part / 2:
            raise WeightMismatch(
                f"the update changed the model by {moved:.2g} nats on average, and its "
                f"log-probabilities differ from the model's by {error:.2g}"
            )
        self.usual, self._was = max(self.usual, error), model
        return error


@dataclass(frozen=True, kw_only=True)
class ShardTensor:
    """One tensor of an engine, or the part of it that a shard has."""

    sums: Sums
    """Its sums."""
    size: int
    """Number of its elements."""
    dtype: torch.dtype
    """Type of its elements."""
    parts: Sequence[str]
    """Names of the model's tensors that are together in it."""


def shard_tensors(engine: Module, names: Collection[str] | None = None) -> dict[str, ShardTensor]:
    """Return the tensors with these names of the engine's model in this process; None: all."""
    fused = getattr(engine, "packed_modules_mapping", {})
    return {
        name: ShardTensor(
            sums=tensor_sums(tensor),
            size=tensor.numel(),
            dtype=tensor.dtype,
            parts=_parts_of(name, fused),
        )
        for name, tensor in engine.named_parameters()
        if names is None or name in names
    }


class ArrivalCheck:
    """Compares sums over an engine's own tensors with those of the weights that it received.

    The first load, which the log-probabilities prove, shows which tensors of the engine hold the
    same elements as the model, in any order. A tensor that the engine stores in another form, such
    as one that is packed for a CPU, is not compared.

    With several shards, the sums of a tensor over all shards are compared. A tensor is divided
    between the shards or is in each of them, and the key-value heads of a fused tensor are in
    several if there are fewer heads than shards; the sizes of the parts show which it is
    (`copies_of`). If one shard keeps an old part, the sums of all shards differ.
    """

    def __init__(self) -> None:
        self._copies: dict[str, Sequence[int]] | None = None
        """Number of shards that hold each part of a tensor, by the tensor's name."""

    @property
    def compared(self) -> list[str]:
        """Names of the engine's tensors that are compared, after the first check."""
        return list(self._copies or {})

    @property
    def names(self) -> Collection[str] | None:
        """Names of the tensors that the next check needs; None: all."""
        return None if self._copies is None else frozenset(self._copies)

    def check(
        self, shards: Sequence[Mapping[str, ShardTensor]], weights: Mapping[str, Tensor]
    ) -> None:
        """Raise WeightMismatch if a tensor does not hold its weights.

        Args:
            shards: The tensors of each shard by name; one mapping for an engine that is not split.
            weights: The weights under their names in the Hugging Face model.
        """
        first, *_ = shards

        def arrived(name: str, copies: Sequence[int]) -> bool:
            # The engine may hold weights in fewer bits than the model.
            parts = [weights[part].to(first[name].dtype) for part in first[name].parts]
            sent = added(
                (count * total, count * squares)
                for count, (total, squares) in zip(copies, map(tensor_sums, parts), strict=True)
            )
            return added(shard[name].sums for shard in shards) == sent

        if self._copies is None:
            self._copies = {}
            for name, own in first.items():
                if weights.keys() >= {*own.parts}:
                    sizes = [weights[part].numel() for part in own.parts]
                    for copies in copies_of(sizes, own.size, len(shards)):
                        if arrived(name, copies):
                            self._copies[name] = copies
                            break
            return
        if lost := [name for name, copies in self._copies.items() if not arrived(name, copies)]:
            raise WeightMismatch(
                f"{len(lost)} of {len(self._copies)} tensors of the engine have other numbers, "
                f"such as {min(lost)}"
            )


def copies_of(sizes: Sequence[int], own: int, shards: int) -> list[Sequence[int]]:
    """Return the numbers of shards that may hold each part of a tensor, likeliest first.

    Args:
        sizes: Number of elements of each of the model's tensors that are its parts.
        own: Number of elements of the tensor in one shard.
        shards: Number of shards.
    """
    first, others = sizes[0], sum(sizes[1:])
    found: list[Sequence[int]] = []
    if shards > 1 and own == first + others:
        found.append([shards] * len(sizes))
    for count in range(2, shards + 1):
        if others and own * shards == first + count * others:
            found.append([1] + [count] * (len(sizes) - 1))
    return [*found, [1] * len(sizes)]  # divided, with padding or without


def _parts_of(name: str, fused: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of the model's tensors that are together in one of the engine."""
    for whole, parts in fused.items():
        if f".{whole}." in name:
            return [name.replace(f".{whole}.", f".{part}.") for part in parts]
    for end, own in EXPERTS.items():
        if name.endswith(end):
            name = name.removesuffix(end) + own
            return [name.replace(".block_sparse_moe.", ".mlp.")]  # Mixtral
    return [name]


def tensor_sums(tensor: Tensor) -> Sums:
    """Return the sums of a tensor, which do not depend on the order of its elements."""
    flat = tensor.detach().flatten()
    total = squares = 0
    for piece in flat.view(_BITS[flat.element_size()]).split(PIECE):
        numbers = piece.long()
        total += int(numbers.sum())
        squares += int((numbers * numbers).sum())
    return total % 2**64, squares % 2**64


def added(all_sums: Iterable[Sums]) -> Sums:
    """Return the sums of several tensors together."""
    total = squares = 0
    for first, second in all_sums:
        total, squares = total + first, squares + second
    return total % 2**64, squares % 2**64


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def prompts(vocabulary: int, longest: int) -> list[tuple[int, ...]]:
    """Return the test prompts: random tokens, the same in every call."""
    rng = Random(0)
    ids = tuple(rng.randrange(vocabulary) for _ in range(min(LENGTH, longest)))
    lengths = {max(1, len(ids) * part // PROMPTS) for part in range(1, PROMPTS + 1)}
    return [ids[:length] for length in sorted(lengths)]


@torch.no_grad()
def logprobs(model: PreTrainedModel, asked: Sequence[Sequence[int]]) -> Tensor:
    """Return the model's log-probabilities [prompts, vocabulary] of the next token, in nats.

    Each prompt is a beginning of the last one, so one forward pass is enough.
    """
    training = model.training
    model.eval()
    try:
        ids = torch.tensor([list(asked[-1])], device=model.device)
        ends = torch.tensor([len(prompt) - 1 for prompt in asked], device=model.device)
        return model(input_ids=ids, use_cache=False).logits[0, ends].float().log_softmax(-1).cpu()
    finally:
        model.train(training)
