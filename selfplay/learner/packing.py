"""Trie packing: samples that share prefixes in one row, so that a shared token is computed once.

Siblings of a group share their prompt, turns of a conversation share all earlier messages, and
branches of a tree share their stem. The samples are sorted by tokens, so that the prefix that a
sample shares with any earlier one is the prefix that it shares with the one before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from selfplay.errors import ConfigError
from selfplay.learner.batch import MASK, STEM, PackedRow, Span, alone, computed, sort_key
from selfplay.models.position_limits import ContextBound, ContextReach, reach
from selfplay.models.tree_attention import FLEX, rows_problem, tree_problem
from selfplay.types import Sample

Packing: TypeAlias = Literal["auto", "trie", "rows"]

MARGIN = 1.2
"""Factor by which a shared row must be cheaper, because masks and reading from the row cost
something."""


@dataclass(frozen=True, kw_only=True)
class Packer:
    """Puts samples into rows. `packer` makes it for a learner's models; `Learner` calls `rows`."""

    packing: Packing
    """auto: shares a row if that is cheaper by estimate. trie: shares if a token is saved. rows:
    never."""
    attention: float = 0.0
    """Cost of attending to one token, as a fraction of the remaining cost of a token."""
    sparse: bool = False
    """True if masked pairs of tokens cost neither time nor memory, as in flex attention."""
    note: str = ""
    """Reason why `auto` became `rows`."""
    reaches: tuple[ContextReach, ...] = ()
    """Bounds of each model that computes the rows."""

    @property
    def mask(self) -> float:
        """Largest number of mask elements of one micro-batch."""
        return math.inf if self.sparse else MASK

    @property
    def widest(self) -> int | None:
        """Largest number of columns of a row of several samples; None for no limit."""
        bounds = [model.shared() for model in self.reaches]
        return min((bound for bound in bounds if bound is not None), default=None)

    @property
    def longest(self) -> ContextBound | None:
        """Longest sample that all models compute correctly; None for no bound of this kind."""
        bounds = [model.longest for model in self.reaches if model.longest is not None]
        return min(bounds, key=lambda bound: bound.tokens, default=None)

    def far(self, tokens: int) -> tuple[bool, ...]:
        """Return, for each model, True if a sample of `tokens` tokens has the frequencies of long
        rows."""
        return tuple(model.far(tokens) for model in self.reaches)

    def rows(self, samples: Sequence[Sample], *, max_tokens: int) -> list[PackedRow]:
        """Return rows of at most `max_tokens` distinct tokens, or of one sample."""
        given = [(self.far(len(ids)), ids, s) for s in samples for ids in [computed(s)]]
        if self.packing == "rows":
            return [alone(sample, far=far) for far, _, sample in given]
        limit = min(max_tokens, self.widest or max_tokens)
        rows: list[_Growing] = []
        previous: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        for far, tokens, sample in sorted(given, key=lambda each: (each[0], sort_key(each[1]))):
            shared = common(previous, tokens)
            fits = bool(rows) and rows[-1].far == far
            if not (fits and self._worth(rows[-1], shared, len(tokens), limit)):
                rows.append(_Growing(far))
                shared = 0
            rows[-1].add(sample, len(tokens), shared)
            previous = tokens
        return [row.made(two_passes=not self.sparse) for row in rows]

    def _worth(self, row: "_Growing", shared: int, length: int, limit: int) -> bool:
        """Return True if a sample of `length` tokens, of which the row has `shared`, should join
        the row."""
        new = length - shared
        width = row.width + new
        if not shared or width > limit:
            return False
        goes_on = shared == row.stem == row.width
        after_stem = width - (row.stem if row.stem >= STEM and not any(row.far) else 0)
        if not goes_on and after_stem * width > self.mask:
            return False
        if self.packing == "trie":
            return True
        # A token under a mask costs all columns of its row, any other only those before it.
        before = shared + new / 2 if self.sparse or goes_on else row.width + after_stem
        seen = new * before
        together = new + self.attention * seen
        return together * MARGIN <= length + self.attention * length * length / 2


class _Growing:
    """A row that is being filled."""

    def __init__(self, far: tuple[bool, ...]) -> None:
        self.far = far
        self.width = self.stem = 0
        self.spans: list[Span] = []
        self._columns: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def add(self, sample: Sample, length: int, shared: int) -> None:
        """Append the `length - shared` tokens that the latest sample does not have."""
        if shared == self.stem == self.width:
            self.stem += length - shared
        new = np.arange(self.width, self.width + length - shared)
        self._columns = np.concatenate([self._columns[:shared], new])
        self.spans.append(Span(sample=sample, columns=self._columns, shared=shared))
        self.width += length - shared

    def made(self, *, two_passes: bool) -> PackedRow:
        """Build the row; with two passes, the shared stem before the branches is a pass of its own.

        A `far` row has one pass, because its stem alone may be short enough for other frequencies.
        """
        stem = self.stem if two_passes and not any(self.far) else 0
        if self.stem == self.width:
            stem = self.width
        return PackedRow(width=self.width, stem=stem, spans=tuple(self.spans), far=self.far)


def common(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    """Return the length of the longest common prefix."""
    count = min(len(first), len(second))
    different = np.flatnonzero(first[:count] != second[:count])
    return int(different[0]) if len(different) else count


def packer(packing: Packing, models: Sequence[PreTrainedModel]) -> Packer:
    """Return a packer for all of the models. Raises ConfigError if packing=trie is not supported by
    a model."""
    for model in models:
        if reason := rows_problem(model):
            raise ConfigError(
                f"policy.model: {type(model).__name__} has {reason}; choose a causal language model"
            )
    reaches = tuple(map(reach, models))
    if packing == "rows":
        return Packer(packing="rows", reaches=reaches)
    for model in models:
        reason = tree_problem(model)
        if reason and packing == "trie":
            raise ConfigError(
                f"learner.packing: trie needs attention that takes a mask, and "
                f"{type(model).__name__} has {reason}; set learner.packing to auto or rows"
            )
        if reason:
            note = f"padded rows: {type(model).__name__} has {reason}"
            return Packer(packing="rows", note=note, reaches=reaches)
    sparse = all(model.config._attn_implementation == FLEX for model in models)
    share = max(map(attention_share, models))
    return Packer(packing=packing, attention=share, sparse=sparse, reaches=reaches)


def attention_share(model: PreTrainedModel) -> float:
    """Return the operations of attending to one token, as a fraction of a token's in the layers'
    matrices.

    Scores and values take 4 x heads x head size operations per layer, a matrix 2 per parameter.
    """
    config = model.config.get_text_config()
    heads = int(config.num_attention_heads)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    embeddings = {
        id(p)
        for m in (model.get_input_embeddings(), model.get_output_embeddings())
        if m is not None
        for p in m.parameters()
    }
    matrices = sum(p.numel() for p in model.parameters() if id(p) not in embeddings)
    return 2 * heads * size * int(config.num_hidden_layers) / max(matrices, 1)
