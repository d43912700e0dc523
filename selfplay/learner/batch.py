"""Samples as padded rows: prompts padded on the left, completions on the right."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfplay.types import Sample


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A micro-batch of B samples, P prompt columns and C completion columns."""

    ids: Tensor
    """[B, P + C] token ids."""
    attention: Tensor
    """[B, P + C] 1 on tokens, 0 on padding."""
    positions: Tensor
    """[B, P + C] positions within each sequence."""
    completions: int
    """C."""
    old_logprobs: Tensor
    """[B, C] nats."""
    advantages: Tensor
    """[B, C]."""
    mask: Tensor
    """[B, C] 1.0 on trainable tokens."""
    temperature: Tensor
    """[B, 1, 1]."""
    samples: tuple[Sample, ...]
    """What the rows are, for error messages."""

    @property
    def targets(self) -> Tensor:
        """[B, C] the completion's token ids."""
        return self.ids[:, -self.completions :]


def trainable_tokens(sample: Sample) -> int:
    """How many tokens of the sample carry loss."""
    return sum(sample.turn.trainable)


def check(sample: Sample) -> None:
    """Raise ValueError, naming the sample, if its turn cannot be a row."""
    turn = sample.turn
    count = len(turn.completion_ids)
    lengths = {"logprobs": len(turn.logprobs), "trainable": len(turn.trainable)}
    if isinstance(sample.advantage, tuple):
        lengths["advantage"] = len(sample.advantage)
    wrong = [f"{found} {name}" for name, found in lengths.items() if found != count]
    if not turn.prompt_ids:
        wrong.append("no prompt to predict its first token from")
    if wrong:
        raise ValueError(
            f"sample {sample.group}/{sample.episode}/{turn.agent}: {count} completion tokens but "
            + ", ".join(wrong)
        )


def micro_batches(samples: Sequence[Sample], *, max_tokens: int) -> Iterator[Batch]:
    """Rows of similar lengths, at most `max_tokens` padded tokens a micro-batch (at least one row).

    Sorted by length, which wastes the least padding; the loss's denominators are those of the whole
    batch, so the cut changes nothing but speed.
    """
    ordered = sorted(
        samples, key=lambda s: (len(s.turn.prompt_ids), len(s.turn.completion_ids)), reverse=True
    )
    rows: list[Sample] = []
    prompt = completion = 0
    for sample in ordered:
        wider = max(prompt, len(sample.turn.prompt_ids))
        longer = max(completion, len(sample.turn.completion_ids))
        if rows and (len(rows) + 1) * (wider + longer) > max_tokens:
            yield pad(rows)
            rows, wider, longer = [], len(sample.turn.prompt_ids), len(sample.turn.completion_ids)
        rows.append(sample)
        prompt, completion = wider, longer
    if rows:
        yield pad(rows)


def pad(samples: Sequence[Sample]) -> Batch:
    """The samples as one micro-batch; ValueError for one that cannot be a row."""
    for sample in samples:
        check(sample)
    prompts = max(len(s.turn.prompt_ids) for s in samples)
    completions = max(len(s.turn.completion_ids) for s in samples)
    rows = len(samples)
    ids = torch.zeros(rows, prompts + completions, dtype=torch.long)
    attention = torch.zeros_like(ids)
    old = torch.zeros(rows, completions)
    advantages, mask = torch.zeros_like(old), torch.zeros_like(old)
    for row, sample in enumerate(samples):
        turn = sample.turn
        first, count = prompts - len(turn.prompt_ids), len(turn.completion_ids)
        ids[row, first : prompts + count] = torch.tensor(turn.prompt_ids + turn.completion_ids)
        attention[row, first : prompts + count] = 1
        old[row, :count] = torch.tensor(turn.logprobs)
        mask[row, :count] = torch.tensor(turn.trainable, dtype=torch.float32)
        advantages[row, :count] = torch.as_tensor(sample.advantage, dtype=torch.float32)
    return Batch(
        ids=ids,
        attention=attention,
        positions=(attention.cumsum(1) - 1).clamp(min=0),
        completions=completions,
        old_logprobs=old,
        advantages=advantages,
        mask=mask,
        temperature=torch.tensor([s.turn.temperature for s in samples])[:, None, None],
        samples=tuple(samples),
    )
