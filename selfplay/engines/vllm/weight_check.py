"""Checks that an engine samples with the weights that it received.

An update that does not arrive raises no error by itself: the run would continue and learn from
completions of other weights. Sums of the engine's own tensors show every lost update of whole
weights. Log-probabilities show that the engine computes like the model, also with adapters.
"""

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

CLEARLY = 4
"""Ratio of a model's change to the usual difference that tells the new model from the old one."""
LENGTH = 64
"""Number of tokens of the longest test prompt."""
WORSE = 3
"""Ratio of a later difference to that of the first load, up to which it is no error."""
PIECE = 2**24
"""Numbers of a tensor that are summed at once."""
Sums: TypeAlias = tuple[int, int]
"""Sum of a tensor's numbers and of their squares, both of the bits and modulo 2**64."""
PROMPTS = 8
"""Number of test prompts, each the beginning of the next."""


class WeightMismatch(Exception):
    """Raised if the engine's log-probabilities are not those of the weights."""


class WeightCheck:
    """Compares an engine's log-probabilities after fixed prompts with those of the model.

    There are two tests. First, the mean absolute difference must be within a tolerance, or, after
    the first load, within `WORSE` times that load's difference if this is more. Second,
    if an update changed the model by much more than the usual difference, the engine must be
    nearer to the new model than to the old one. An engine that is exact to 1e-6 nats thus shows
    that an update of 1e-5 nats was lost. A lost update below the rounding error cannot be seen.
    """

    def __init__(self, tolerance: float) -> None:
        """`tolerance`: the maximum mean absolute difference in nats."""
        self.tolerance = tolerance
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
        if moved > CLEARLY * self.usual and error > moved / 2:
            raise WeightMismatch(
                f"the update changed the model by {moved:.2g} nats on average, and its "
                f"log-probabilities differ from the model's by {error:.2g}"
            )
        self.usual, self._was = max(self.usual, error), model
        return error


class ArrivalCheck:
    """Compares sums over an engine's own tensors with those of the weights that it received.

    The first load, which the log-probabilities prove, shows which tensors of the engine hold the
    numbers of the model in any order. A tensor that the engine stores in another form, such as one
    that is packed for a CPU, is not compared.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[str]] | None = None

    @property
    def compared(self) -> list[str]:
        """Names of the engine's tensors that are compared."""
        return list(self._parts or {})

    def check(self, engine: Module, weights: Mapping[str, Tensor]) -> None:
        """Raise WeightMismatch if a tensor does not hold its weights.

        Args:
            engine: The engine's model.
            weights: The weights under their names in the Hugging Face model.
        """
        own = dict(engine.named_parameters())
        fused = getattr(engine, "packed_modules_mapping", {})
        first = self._parts is None
        parts = self._parts or {name: _parts_of(name, fused) for name in own}
        if first:
            parts = {name: made for name, made in parts.items() if weights.keys() >= {*made}}

        def arrived(name: str) -> bool:
            # The engine may hold weights in fewer bits than the model.
            sent = (tensor_sums(weights[part].to(own[name].dtype)) for part in parts[name])
            return tensor_sums(own[name]) == added(sent)

        there = [name for name in parts if arrived(name)]
        if first:
            self._parts = {name: parts[name] for name in there}
            return
        if lost := parts.keys() - {*there}:
            raise WeightMismatch(
                f"{len(lost)} of {len(parts)} tensors of the engine have other numbers, such as "
                f"{min(lost)}"
            )


def _parts_of(name: str, fused: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of the model's tensors that are together in one of the engine."""
    for whole, parts in fused.items():
        if f".{whole}." in name:
            return [name.replace(f".{whole}.", f".{part}.") for part in parts]
    return [name]


def tensor_sums(tensor: Tensor) -> Sums:
    """Return the sums of a tensor, which do not depend on the order of its numbers."""
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
