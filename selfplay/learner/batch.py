"""Samples as micro-batches: rows of tokens to compute, and the positions at which samples read
them.

A row is one sample, or a trie of several samples that share prefixes. Rows are padded on the right,
where causal attention sees no padding, so that plain rows need no mask.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfplay.number_array import NumberArray
from selfplay.types import Sample, Turn

MASK = 2**25
"""Largest number of mask elements of one micro-batch of tries; 128 MiB in float32."""
STEM = 128
"""Smallest number of stem columns for which a pass of their own, without a mask, is worthwhile."""
PADDING = 512
"""Largest padding of one micro-batch, in tokens: about the cost of another forward and backward
pass."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """The tokens of one sample in a row. `packing.Packer` makes it; `pad` reads it."""

    sample: Sample
    """The sample."""
    columns: NDArray[np.int64]
    """[L] columns of the sample's tokens, including shared ones."""
    shared: int
    """Number of leading tokens that the row already had."""


@dataclass(frozen=True, kw_only=True)
class PackedRow:
    """A sequence of distinct tokens, and the samples that are paths through it.

    `packing.Packer` makes it; `cut` and `pad` turn rows into a `Batch`.
    """

    width: int
    """T, number of tokens."""
    stem: int
    """Number of leading tokens that each see all tokens before them.

    These are all tokens in a row of one sample, and in a row of a conversation in which every turn
    begins with the turn before it.
    """
    spans: tuple[Span, ...]
    """Samples of the row, in the order in which they were added."""
    far: tuple[bool, ...] = ()
    """For each model, True if the samples are longer than its `ContextReach.frequency_change`.
    Only rows with equal values share a pass."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A micro-batch of S samples in R rows of T columns.

    N is the number of distinct predicted tokens with a loss, and C the length of the longest
    completion. `pad` makes it; `logprobs.Scorer` and the learner read it.
    """

    ids: Tensor
    """[R, T] token ids."""
    positions: Tensor
    """[R, T] positions within the samples; 0 for padding, so that no position exceeds the longest
    sample."""
    ends: Tensor | None
    """[R, T] last column of the tokens that attend to each token: these are the columns from the
    token's own to this one. None if in every row each column attends to all columns before it."""
    stem: int
    """Number of leading stem columns that all rows have, if a pass of their own is worthwhile; else
    0."""
    places: Tensor
    """[N] indices in the flattened rows from which tokens are predicted."""
    targets: Tensor
    """[N] ids of the predicted tokens."""
    temperature: Tensor
    """[N] sampling temperatures of these tokens."""
    reads: Tensor | None
    """[trainable tokens] index from 0 to N - 1 of each trainable token of all samples; None if the
    N tokens are these tokens in the same order."""
    old_logprobs: Tensor
    """[S, C] nats under the sampler or, with a correction, under the learner before the first step
    of the batch; 0 for a token without loss whose value is not finite."""
    advantages: Tensor
    """[S, C] advantages per token."""
    mask: Tensor
    """[S, C] 1.0 on trainable tokens."""
    samples: tuple[Sample, ...]
    """Samples of the batch, for error messages."""
    passes: int
    """Number of forward passes of the model. It may be more than this micro-batch needs, because
    all ranks must make equally many."""

    def scatter(self, values: Tensor, background: Tensor) -> Tensor:
        """Return [S, C] with `values` [N] at trainable tokens and `background` [S, C] elsewhere."""
        if self.reads is not None:
            values = values[self.reads.to(values.device)]
        return background.masked_scatter(self.mask.to(values.device) > 0, values)


def trainable_tokens(sample: Sample) -> int:
    """Return the number of tokens of the sample with a loss."""
    mask = _mask(sample.turn)
    return len(mask) if mask.all_ones else sum(mask)


def computed_count(sample: Sample) -> int:
    """Return the number of tokens that must be computed."""
    turn, mask = sample.turn, _mask(sample.turn)
    if mask.all_ones:
        return len(turn.prompt_ids) + len(mask) - 1
    counted = np.flatnonzero(np.asarray(mask))
    return len(turn.prompt_ids) + (int(counted[-1]) if len(counted) else 0)


def computed(sample: Sample) -> NDArray[np.int64]:
    """Return the tokens that must be computed: all before the last one with a loss."""
    turn, prompt = sample.turn, np.asarray(sample.turn.prompt_ids, dtype=np.int64)
    last = computed_count(sample) - len(prompt)
    if not last:
        return prompt
    return np.concatenate([prompt, np.asarray(turn.completion_ids[:last])], dtype=np.int64)


def _mask(turn: Turn) -> NumberArray:
    return NumberArray.of(turn.loss_mask, "integers")


def sort_key(ids: NDArray[np.int64]) -> bytes:
    """Return a key that sorts token ids as tuples are sorted: number by number."""
    return ids.astype(">i8").tobytes()


def check(sample: Sample) -> None:
    """Raise ValueError, naming the sample, if its turn cannot be a row."""
    turn = sample.turn
    count = len(turn.completion_ids)
    lengths = {"logprobs": len(turn.logprobs), "loss_mask": len(turn.loss_mask)}
    if isinstance(sample.advantage, tuple):
        lengths["advantage"] = len(sample.advantage)
    wrong = [f"{size} {name}" for name, size in lengths.items() if size != count]
    if not turn.prompt_ids:
        wrong.append("no prompt to predict its first token from")
    if wrong:
        raise ValueError(f"{named(sample)}: {count} completion tokens but " + ", ".join(wrong))


def named(sample: Sample) -> str:
    """Return the sample's name for an error: group, episode and agent.

    An example of a warm start has no agent; its `group` is the place that it comes from.
    """
    if not sample.turn.agent:
        return sample.group
    return f"sample {sample.group}/{sample.episode}/{sample.turn.agent}"


def alone(sample: Sample, *, far: tuple[bool, ...] = ()) -> PackedRow:
    """Return the sample as a row of its own; `far` as in `PackedRow`."""
    width = computed_count(sample)
    span = Span(sample=sample, columns=np.arange(width), shared=0)
    return PackedRow(width=width, stem=width, spans=(span,), far=far)


def nothing() -> PackedRow:
    """Return a row without trainable tokens, whose computation has no gradient."""
    turn = Turn(
        agent="",
        role="",
        policy="",
        version=0,
        prompt_ids=(0,),
        completion_ids=(0,),
        logprobs=(0.0,),
        loss_mask=(0,),
    )
    return alone(Sample(turn=turn, advantage=0.0))


def cut(
    rows: Sequence[PackedRow], *, max_tokens: int, mask: float = MASK
) -> Iterator[list[PackedRow]]:
    """Return the rows of each micro-batch, at least one row each.

    Rows are sorted by width. A micro-batch ends before it has more than `max_tokens` tokens or
    `PADDING` tokens of padding. The loss's denominators are those of the whole batch, so the cut
    affects only speed. Tries are separate from plain rows, which need no mask, and their masks stay
    within `mask` elements. Rows with different `far` are separate.
    """
    kinds = sorted({(row.stem < row.width, row.far) for row in rows})
    for tree, far in kinds:
        kind = [row for row in rows if (row.stem < row.width) is tree and row.far == far]
        part: list[PackedRow] = []
        padding = 0
        for row in sorted(kind, key=lambda row: row.width, reverse=True):
            width = part[0].width if part else row.width
            tokens = (len(part) + 1) * width
            padding += width - row.width
            after_stem = width - common_stem([*part, row])
            too_many = tokens > max_tokens or (tree and tokens * after_stem > mask)
            if part and (too_many or padding > PADDING):
                yield part
                part, padding = [], 0
            part.append(row)
        if part:
            yield part


def common_stem(rows: Sequence[PackedRow]) -> int:
    """Return the number of columns of all the rows that are computed first and without a mask."""
    stem = min(row.stem for row in rows)
    return stem if stem >= STEM else 0


def passes(rows: Sequence[PackedRow]) -> int:
    """Return the number of passes of a micro-batch of these rows: a stem is computed before its
    branches."""
    trees = any(row.stem < row.width for row in rows)
    return 2 if trees and common_stem(rows) else 1


def pad(rows: Sequence[PackedRow], *, least: int = 1, masked: bool = False) -> Batch:
    """Return the rows as one micro-batch. Raises ValueError for a sample that cannot be in one.

    Args:
        rows: At least one row.
        least: Smallest number of passes of the model.
        masked: True if plain rows get a mask too.
    """
    spans = [(number, span) for number, row in enumerate(rows) for span in row.spans]
    width = max(row.width for row in rows)
    length = max(len(span.sample.turn.completion_ids) for _, span in spans)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    positions = np.zeros_like(ids)
    old = np.zeros((len(spans), length), dtype=np.float32)
    advantages, mask = np.zeros_like(old), np.zeros_like(old)
    from_where: list[NDArray[np.int64]] = []
    chosen: list[NDArray[np.int64]] = []
    temperature: list[NDArray[np.float64]] = []
    for place, (number, span) in enumerate(spans):
        check(span.sample)
        turn, columns, count = span.sample.turn, span.columns, len(span.sample.turn.completion_ids)
        if span.shared < len(columns):  # the other tokens are those of earlier spans
            new = columns[span.shared :]
            ids[number, new] = computed(span.sample)[span.shared :]
            positions[number, new] = np.arange(span.shared, len(columns))
        if _mask(turn).all_ones:
            own, offsets = np.ones(count), np.arange(count)
            old[place, :count], advantages[place, :count] = turn.logprobs, span.sample.advantage
        else:
            own = np.asarray(turn.loss_mask)
            offsets = np.flatnonzero(own)
            old[place, :count] = _known(turn.logprobs, own)
            advantages[place, :count] = _known(span.sample.advantage, own)
        mask[place, :count] = own
        from_where.append(number * width + columns[len(turn.prompt_ids) - 1 + offsets])
        chosen.append(np.asarray(turn.completion_ids)[offsets])
        temperature.append(np.full(len(offsets), turn.temperature))
    parts = [np.concatenate(each) for each in (from_where, chosen, temperature)]
    read, reads = np.stack(parts), None
    if len(spans) > len(rows):  # branches share tokens of completions
        read, reads = np.unique(read, axis=1, return_inverse=True)
    trees = masked or any(row.stem < row.width for row in rows)
    return Batch(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        ends=torch.from_numpy(_ends(rows, width)) if trees else None,
        stem=common_stem(rows) if trees and not masked else 0,
        places=torch.tensor(read[0], dtype=torch.long),
        targets=torch.tensor(read[1], dtype=torch.long),
        temperature=torch.tensor(read[2], dtype=torch.float32),
        reads=None if reads is None else torch.from_numpy(reads.reshape(-1)),
        old_logprobs=torch.from_numpy(old),
        advantages=torch.from_numpy(advantages),
        mask=torch.from_numpy(mask),
        samples=tuple(span.sample for _, span in spans),
        passes=max(least, passes(rows)),
    )


def _known(values: float | Sequence[float], mask: NDArray[Any]) -> NDArray[np.float64]:
    """Return [C] values, with 0 for a value that is not finite on a token without loss.

    Such a value is not used, but 0 times the value would be NaN.
    """
    array = np.broadcast_to(np.asarray(values, dtype=np.float64), mask.shape)
    return np.where((mask > 0) | np.isfinite(array), array, 0.0)


def _ends(rows: Sequence[PackedRow], width: int) -> NDArray[np.int32]:
    """Return [R, T] the last column of each token's subtree; samples are in depth-first order."""
    ends = np.tile(np.arange(width, dtype=np.int32), (len(rows), 1))  # padding sees itself
    for row, own in zip(rows, ends, strict=True):
        for span in row.spans:
            if span.shared < len(span.columns):
                own[span.columns] = span.columns[-1]
    return ends
