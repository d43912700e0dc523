"""Samples as micro-batches: rows of tokens to compute, and where the samples read them.

A row is one sample, or a trie of several that share prefixes. Rows are padded on the right, where
causal attention sees no padding, so that plain rows need no mask at all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfplay.types import Sample, Turn

MASK = 2**25
"""Elements of the masks of one micro-batch of tries, at most; 128 MiB in float32."""
STEM = 128
"""Columns that are worth computing first, and without a mask: a pass of its own costs something."""
PADDING = 512
"""Padding of one micro-batch, in tokens: about what another forward and backward pass costs."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """What one sample adds to a row."""

    sample: Sample
    columns: NDArray[np.int64]
    """[L] the columns of the sample's tokens, shared ones included."""
    shared: int
    """How many of them were in the row before."""


@dataclass(frozen=True, kw_only=True)
class PackedRow:
    """A sequence of distinct tokens, and the samples that are paths through it."""

    width: int
    """T, its tokens."""
    stem: int
    """How many of them, from the first on, each see all that stand before them: all of one sample,
    and of a conversation in which every turn begins with the turn before it."""
    spans: tuple[Span, ...]
    """Its samples, in the order in which they were added."""
    far: tuple[bool, ...] = ()
    """For each model, True if the samples are longer than its `ContextReach.turn`. Only rows with
    equal values share a pass."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A micro-batch: R rows of T columns, in which S samples read N tokens; C the longest one's."""

    ids: Tensor
    """[R, T] token ids."""
    positions: Tensor
    """[R, T] positions within the samples; 0 for padding, so that no position is larger than in
    the longest sample."""
    ends: Tensor | None
    """[R, T] the last column that sees each token: those from its own to there do, no others. None
    where in every row each column sees all that stand before it."""
    stem: int
    """How many columns are such in all rows, if they are worth a pass of their own; 0 if not."""
    places: Tensor
    """[N] where in the flattened rows a token is predicted from."""
    targets: Tensor
    """[N] the tokens predicted."""
    temperature: Tensor
    """[N] at which they were sampled."""
    reads: Tensor | None
    """[trainable tokens] which of the N each of them is; None: each is its own."""
    old_logprobs: Tensor
    """[S, C] nats; 0 where a token has no loss and the sampler's value is not finite."""
    advantages: Tensor
    """[S, C]."""
    mask: Tensor
    """[S, C] 1.0 on trainable tokens."""
    samples: tuple[Sample, ...]
    """What they are, for error messages."""
    passes: int
    """Of the model, at least as many as it needs: other ranks wait in each."""

    def scatter(self, values: Tensor, background: Tensor) -> Tensor:
        """[S, C] `values` [N] where the samples read them, `background` [S, C] elsewhere."""
        if self.reads is not None:
            values = values[self.reads.to(values.device)]
        return background.masked_scatter(self.mask.to(values.device) > 0, values)


def trainable_tokens(sample: Sample) -> int:
    """How many tokens of the sample carry loss."""
    return sum(sample.turn.loss_mask)


def computed(sample: Sample) -> tuple[int, ...]:
    """The tokens that must be computed: all before the last one that carries loss."""
    turn = sample.turn
    last = max((place for place, counts in enumerate(turn.loss_mask) if counts), default=0)
    return turn.prompt_ids + turn.completion_ids[:last]


def check(sample: Sample) -> None:
    """Raise ValueError, naming the sample, if its turn cannot be a row."""
    turn = sample.turn
    count = len(turn.completion_ids)
    lengths = {"logprobs": len(turn.logprobs), "loss_mask": len(turn.loss_mask)}
    if isinstance(sample.advantage, tuple):
        lengths["advantage"] = len(sample.advantage)
    wrong = [f"{found} {name}" for name, found in lengths.items() if found != count]
    if not turn.prompt_ids:
        wrong.append("no prompt to predict its first token from")
    if wrong:
        raise ValueError(f"{named(sample)}: {count} completion tokens but " + ", ".join(wrong))


def named(sample: Sample) -> str:
    """The sample's name for an error: group, episode and agent."""
    return f"sample {sample.group}/{sample.episode}/{sample.turn.agent}"


def alone(sample: Sample, *, far: tuple[bool, ...] = ()) -> PackedRow:
    """The sample as a row of its own; `far` as in `PackedRow`."""
    width = len(computed(sample))
    span = Span(sample=sample, columns=np.arange(width), shared=0)
    return PackedRow(width=width, stem=width, spans=(span,), far=far)


def micro_batches(rows: Sequence[PackedRow], *, max_tokens: int) -> Iterator[Batch]:
    """Rows of similar widths, at most `max_tokens` tokens a micro-batch, padding included."""
    return map(pad, cut(rows, max_tokens=max_tokens))


def nothing() -> PackedRow:
    """A row in which nothing is read: what is computed of it has no gradient."""
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
    """The rows of each micro-batch, at least one.

    Sorted by width and cut where padding adds up; the loss's denominators are those of the whole
    batch, so the cut changes nothing but speed. Tries are kept from plain rows, which need no mask,
    and their masks within `mask` elements. Rows with another `far` are kept apart.
    """
    kinds = sorted({(row.stem < row.width, row.far) for row in rows})
    for tree, far in kinds:
        kind = [row for row in rows if (row.stem < row.width) is tree and row.far == far]
        held: list[PackedRow] = []
        padding = 0
        for row in sorted(kind, key=lambda row: row.width, reverse=True):
            width = held[0].width if held else row.width
            tokens = (len(held) + 1) * width
            padding += width - row.width
            behind = width - common_stem([*held, row])
            too_many = tokens > max_tokens or (tree and tokens * behind > mask)
            if held and (too_many or padding > PADDING):
                yield held
                held, padding = [], 0
            held.append(row)
        if held:
            yield held


def common_stem(rows: Sequence[PackedRow]) -> int:
    """How many columns of all the rows are computed first and without a mask."""
    stem = min(row.stem for row in rows)
    return stem if stem >= STEM else 0


def passes(rows: Sequence[PackedRow]) -> int:
    """How many passes a micro-batch of these rows needs: a stem comes before what is behind it."""
    trees = any(row.stem < row.width for row in rows)
    return 2 if trees and common_stem(rows) else 1


def pad(rows: Sequence[PackedRow], *, least: int = 1, masked: bool = False) -> Batch:
    """The rows as one micro-batch; ValueError for a sample that cannot be in one.

    Args:
        rows: At least one.
        least: Passes of the model, at least.
        masked: Whether plain rows say who sees them, too.
    """
    spans = [(number, span) for number, row in enumerate(rows) for span in row.spans]
    width = max(row.width for row in rows)
    length = max(len(span.sample.turn.completion_ids) for _, span in spans)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    positions = np.zeros_like(ids)
    old = np.zeros((len(spans), length), dtype=np.float32)
    advantages, mask = np.zeros_like(old), np.zeros_like(old)
    tokens: list[NDArray[np.float64]] = []
    for place, (number, span) in enumerate(spans):
        check(span.sample)
        turn, columns, count = span.sample.turn, span.columns, len(span.sample.turn.completion_ids)
        ids[number, columns] = computed(span.sample)
        positions[number, columns] = np.arange(len(columns))
        mask[place, :count] = turn.loss_mask
        old[place, :count] = _known(turn.logprobs, mask[place, :count])
        advantages[place, :count] = _known(span.sample.advantage, mask[place, :count])
        offsets = np.flatnonzero(turn.loss_mask)
        from_where = number * width + columns[len(turn.prompt_ids) - 1 + offsets]
        said = np.array(turn.completion_ids)[offsets]
        tokens.append(np.stack([from_where, said, np.full(len(said), turn.temperature)]))
    found, reads = np.concatenate(tokens, axis=1), None
    if len(spans) > len(rows):  # branches share tokens of completions too
        found, reads = np.unique(found, axis=1, return_inverse=True)
    trees = masked or any(row.stem < row.width for row in rows)
    return Batch(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        ends=torch.from_numpy(_ends(rows, width)) if trees else None,
        stem=common_stem(rows) if trees and not masked else 0,
        places=torch.tensor(found[0], dtype=torch.long),
        targets=torch.tensor(found[1], dtype=torch.long),
        temperature=torch.tensor(found[2], dtype=torch.float32),
        reads=None if reads is None else torch.from_numpy(reads.reshape(-1)),
        old_logprobs=torch.from_numpy(old),
        advantages=torch.from_numpy(advantages),
        mask=torch.from_numpy(mask),
        samples=tuple(span.sample for _, span in spans),
        passes=max(least, passes(rows)),
    )


def _known(values: float | Sequence[float], mask: NDArray[np.float32]) -> NDArray[np.float64]:
    """[C] the values, with 0 for a value that is not finite on a token without loss: the value is
    not used, but 0 times the value would be NaN."""
    found = np.broadcast_to(np.asarray(values, dtype=np.float64), mask.shape)
    return np.where((mask > 0) | np.isfinite(found), found, 0.0)


def _ends(rows: Sequence[PackedRow], width: int) -> NDArray[np.int32]:
    """[R, T] the last column of each token's subtree: samples are added in depth-first order."""
    ends = np.tile(np.arange(width, dtype=np.int32), (len(rows), 1))  # padding sees itself
    for row, own in zip(rows, ends, strict=True):
        for span in row.spans:
            if span.shared < len(span.columns):
                own[span.columns] = span.columns[-1]
    return ends
