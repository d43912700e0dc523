"""Trie packing: samples that share prefixes in one row, so that a shared token is computed once.

Siblings of a group share their prompt, turns of a conversation share all earlier messages, and
branches of a tree share their stem. The samples are sorted by tokens, so that the prefix that a
sample shares with any earlier one is the prefix that it shares with the one before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from transformers import PretrainedConfig, PreTrainedModel

from selfplay.errors import ConfigError
from selfplay.learner.batch import MASK, STEM, PackedRow, Span, alone, computed, sort_key
from selfplay.learner.cheapest_cuts import RowCost, cheapest
from selfplay.models.position_limits import ContextBound, ContextReach, reach
from selfplay.models.tree_attention import FLEX, rows_problem, tree_problem
from selfplay.types import Sample

Packing: TypeAlias = Literal["auto", "trie", "rows"]
"""See `LearnerSettings.packing`."""

GAIN = 0.85
"""Rows that were filled one after another are replaced by the cheapest cuts if these cost at most
this fraction of the cost of the rows. The fraction is below 1, because the estimates are rough."""


@dataclass(frozen=True, kw_only=True)
class AttentionCosts:
    """Costs of attention on a kind of device."""

    masked: float
    """Time of an operation of masked attention, divided by that of one of a matrix product."""
    causal: float
    """Time of attending to one token without a mask, as a fraction of that under a mask."""
    margin: float
    """Factor by which a shared row must be cheaper than separate rows, because its mask costs
    something, and so does reading several samples from it."""


CPU = AttentionCosts(masked=1.5, causal=1.0, margin=1.2)
"""Measured in rows of 128 to 2,560 tokens: `masked` is 1.2 with a model of 1 M parameters, 1.5 with
SmolLM2-135M in float32, 2.1 in bfloat16."""
GPU = AttentionCosts(masked=1.0, causal=0.26, margin=1.5)
"""Measured on an H100 with the shape of Qwen3-0.6B. Without the margin, a row of 8,192 tokens took
0.9 to 1.1 times its estimate, rows of 4,608 tokens 1.1 times, rows of 2,049 tokens 1.4 times."""


@dataclass(frozen=True, kw_only=True)
class Packer:
    """Puts samples into rows. `packer` makes it for a learner's models; `Learner` calls `rows`."""

    packing: Packing
    """auto: samples share a row if that is cheaper by estimate. trie: samples share a row if that
    saves a token. rows: each sample has its own row."""
    attention: float = 0.0
    """Cost for a token of attending to one other token, as a fraction of a token's cost without
    attention."""
    costs: AttentionCosts = CPU
    """Costs of attention on the device."""
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
        """Return, for each model, True if a sample of `tokens` tokens has the rotary frequencies of
        long rows (`ContextReach.frequency_change`)."""
        return tuple(model.far(tokens) for model in self.reaches)

    def rows(self, samples: Sequence[Sample], *, max_tokens: int) -> list[PackedRow]:
        """Return rows of at most `max_tokens` distinct tokens, or of one sample."""
        given = [(self.far(len(ids)), ids, s) for s in samples for ids in [computed(s)]]
        if self.packing == "rows":
            return [alone(sample, far=far) for far, _, sample in given]
        limit = min(max_tokens, self.widest or max_tokens)
        given.sort(key=lambda each: (each[0], sort_key(each[1])))
        sharing = [0] * len(given)
        rows: list[_Growing] = []
        for k, (far, tokens, sample) in enumerate(given):
            if k and given[k - 1][0] == far:
                sharing[k] = common(given[k - 1][1], tokens)
            shared = sharing[k]
            if not (rows and self._worth(rows[-1], shared, len(tokens), limit)):
                rows.append(_Growing(far))
                shared = 0
            rows[-1].add(sample, len(tokens), shared)
        if rows and self.packing == "auto" and not self.sparse:
            rows = self._cut_again(rows, sharing, limit)
        return [row.made(two_passes=not self.sparse) for row in rows]

    def _cut_again(
        self, rows: list["_Growing"], sharing: Sequence[int], limit: int
    ) -> list["_Growing"]:
        """Return the cheapest rows of the same samples, or the same rows if they cost about as
        much.

        Args:
            rows: Rows that were filled one after another.
            sharing: [S] tokens that each sample shares with the sample before it.
            limit: Largest number of tokens of a row of several samples.
        """
        cost = RowCost(
            attention=self.costs.masked * self.attention,
            causal=self.costs.causal,
            branching=self.costs.margin,
        )
        width, stem = np.array([[row.width, row.stem] for row in rows]).reshape(-1, 2).T
        before = cost(width, stem, np.array([not any(row.far) for row in rows])).sum()
        if width.sum() >= GAIN * before:
            return rows
        samples = [(row.far, span.sample, len(span.columns)) for row in rows for span in row.spans]
        # Equal samples stay together: [D] indices of the first sample of each distinct one.
        distinct = [
            k
            for k, (_, _, length) in enumerate(samples)
            if not (k and sharing[k] == length == samples[k - 1][2])
        ]
        starts, after = cheapest(
            [samples[k][2] for k in distinct],
            [sharing[k] for k in distinct],
            [not any(samples[k][0]) for k in distinct],
            cost,
            max_tokens=limit,
            max_mask=self.mask,
        )
        if after > GAIN * before:
            return rows
        first = {distinct[start] for start in starts}
        made: list[_Growing] = []
        for k, (far, sample, length) in enumerate(samples):
            if k in first:
                made.append(_Growing(far))
            made[-1].add(sample, length, 0 if k in first else sharing[k])
        return made

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
        seen = new * before * (self.costs.causal if goes_on else 1.0)
        together = new + self.attention * seen
        apart = length + self.attention * self.costs.causal * length * length / 2
        return together * self.costs.margin <= apart


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


def packer(packing: Packing, models: Sequence[PreTrainedModel], *, device: str) -> Packer:
    """Return a packer for all of the models.

    Args:
        packing: Value of `learner.packing`; ConfigError for trie if a model does not support it.
        models: The models that will compute the rows.
        device: Kind of the device on which they will compute, as torch names it.
    """
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
    costs = GPU if device == "cuda" else CPU
    if sparse:  # one kernel computes rows with and without a mask
        costs = replace(costs, causal=1.0)
    return Packer(packing=packing, attention=share, costs=costs, sparse=sparse, reaches=reaches)


def attention_share(model: PreTrainedModel) -> float:
    """Return the cost of attending to one token, as a fraction of a token's cost without attention.

    Costs are numbers of operations. Scores and values take 4 x heads x head size operations per
    layer, and the layers' matrices 2 per parameter. In a mixture of experts, a token passes only
    some of the experts.
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
    part = _active_experts(config)
    matrices = sum(
        p.numel() * (part if ".experts." in name else 1)
        for name, p in model.named_parameters()
        if id(p) not in embeddings
    )
    return 2 * heads * size * int(config.num_hidden_layers) / max(matrices, 1)


def _active_experts(config: PretrainedConfig) -> float:
    """Return the fraction of a layer's experts that a token passes; 1 without experts."""
    count = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    active = getattr(config, "num_experts_per_tok", None)
    return active / count if active and count else 1.0
