"""Truncated sampling: top-k, top-p and min-p.

The rules are applied in vLLM's order: min-p first, then top-k, then top-p over the tokens that are
left. The kept tokens of a row are the first ones in the order of probability, and tokens of equal
probability are ordered by their ids. (vLLM keeps all tokens that tie with the k-th.)
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

BLOCK = 256
"""Number of tokens of a block of the ranked vocabulary in `_count_top_p`."""


class Truncating(Protocol):
    """Sampling settings that can truncate: those of a `Request` or of a role."""

    @property
    def temperature(self) -> float:
        """Sampling temperature; 0 is greedy."""
        ...

    @property
    def top_p(self) -> float:
        """Total probability of the kept tokens."""
        ...

    @property
    def top_k(self) -> int:
        """Maximum number of kept tokens; 0: no maximum."""
        ...

    @property
    def min_p(self) -> float:
        """Smallest probability of a kept token, as a fraction of the largest one."""
        ...


def truncates(settings: Truncating) -> bool:
    """Return True if sampling with these settings leaves out tokens. Greedy sampling does not."""
    if settings.temperature == 0:
        return False
    return settings.top_p < 1 or settings.top_k > 0 or settings.min_p > 0


def truncate(logprobs: Tensor, scores: Tensor, settings: Sequence[Truncating]) -> Tensor:
    """Return the log-probabilities of the truncated distributions.

    Rows that are not truncated are returned unchanged. The most probable token is always kept.

    Args:
        logprobs: [rows, V] nats of the distributions.
        scores: [rows, V] numbers in the order of the probabilities, such as logits. They decide
            between tokens whose probabilities are equal only after rounding.
        settings: Settings of each row.

    Returns:
        [rows, V] nats, normalised over the kept tokens of each row; -inf for other tokens.
    """
    rows = [row for row, each in enumerate(settings) if truncates(each)]
    if not rows:
        return logprobs
    some = torch.tensor(rows, device=logprobs.device)
    order = scores[some].argsort(dim=-1, descending=True, stable=True)
    ranked = logprobs[some].gather(-1, order)
    count = _counts(ranked, [settings[row] for row in rows])
    places = torch.arange(ranked.shape[-1], device=ranked.device)
    kept = ranked.masked_fill(places >= count.to(ranked.device)[:, None], -torch.inf)
    kept = kept - kept.logsumexp(-1, keepdim=True)
    result = logprobs.clone()
    result[some] = torch.empty_like(kept).scatter_(-1, order, kept)
    return result


def _counts(ranked: Tensor, settings: Sequence[Truncating]) -> Tensor:
    """Return the number of kept tokens of each row, from log-probabilities in descending order."""
    width = ranked.shape[-1]
    smallest = torch.tensor([each.min_p for each in settings], dtype=ranked.dtype).log()
    above = ranked >= ranked[:, :1] + smallest.to(ranked.device)[:, None]
    count = above.sum(-1).cpu()
    most = torch.tensor([each.top_k or width for each in settings])
    count = torch.minimum(count, most).clamp(min=1)
    top_p = torch.tensor([each.top_p for each in settings], dtype=torch.float64)
    if not bool((top_p < 1).any()):
        return count
    places = torch.arange(width, device=ranked.device)
    left = ranked.exp().masked_fill(places >= count.to(ranked.device)[:, None], 0.0)
    return torch.where(top_p < 1, torch.minimum(count, _count_top_p(left, top_p)), count)


def _count_top_p(chances: Tensor, top_p: Tensor) -> Tensor:
    """Return the smallest number of first tokens with at least the fraction `top_p` of each row.

    Selects a block of tokens first, then a token of that block, because cumulative sums over a
    whole vocabulary are slow, and not deterministic on a GPU.
    """
    width = -(-chances.shape[-1] // BLOCK) * BLOCK
    blocks = torch.nn.functional.pad(chances, (0, width - chances.shape[-1]))
    blocks = blocks.unflatten(-1, (-1, BLOCK))
    ends = blocks.sum(-1, dtype=torch.float64).cpu().cumsum(-1)
    targets = top_p * ends[:, -1]
    block = torch.searchsorted(ends, targets[:, None])[:, 0].clamp(max=ends.shape[-1] - 1)
    index = torch.arange(len(ends))
    starts = torch.nn.functional.pad(ends, (1, 0))[index, block]
    inside = blocks[index.to(blocks.device), block.to(blocks.device)].double().cpu().cumsum(-1)
    place = torch.searchsorted(inside, (targets - starts)[:, None])[:, 0]
    return block * BLOCK + place.clamp(max=BLOCK - 1) + 1
