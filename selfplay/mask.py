"""The mask of a row that is a tree of tokens, in the form that each kernel of attention takes.

Tokens stand in depth-first order, so what a token's subtree holds are the columns from its own to
its `end`: a token sees another exactly where its column lies between the two. One number per token
is the whole mask.
"""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"""Columns of a block: flex attention skips those of which nothing is seen."""


def visible(ends: Tensor, stem: int = 0) -> Tensor:
    """[R, 1, T - stem, T] which columns each column from `stem` on sees.

    Args:
        ends: [R, T] the last column of each token's subtree.
        stem: The first column that looks.
    """
    columns = torch.arange(ends.shape[1], device=ends.device)
    own = columns[stem:, None]
    return ((columns <= own) & (own <= ends[:, None]))[:, None]


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to the scores: 0 where `visible`, the least number of `dtype` elsewhere.

    Eager attention knows no other; sdpa converts to it in every layer anew.
    """
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, torch.finfo(dtype).min
    )


def blocks(ends: Tensor) -> BlockMask:
    """The mask of flex attention (2412.05496), without any tensor of T x T.

    Args:
        ends: [R, T] the last column of each token's subtree.
    """
    columns = ends.shape[1]
    count = -(-columns // BLOCK)
    # Behind the last column nothing is seen, and no block that reaches there is seen whole.
    held = torch.nn.functional.pad(ends, (0, count * BLOCK - columns), value=-1)
    held = held.unflatten(1, (count, BLOCK))
    first = torch.arange(count, device=ends.device) * BLOCK
    last, query = first + BLOCK - 1, first[:, None]
    whole = (last < query) & (last[:, None] <= held.amin(-1)[:, None])
    some = (first <= query) & (query <= held.amax(-1)[:, None]) & ~whole

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query <= ends[row, key])

    return BlockMask.from_kv_blocks(
        *_listed(some),
        *_listed(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(columns, columns),
    )


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """[R, 1, Q] how many blocks of keys each block of queries has, and [R, 1, Q, K] which, first.

    Args:
        chosen: [R, Q, K].
    """
    order = (~chosen).to(torch.int32).argsort(dim=-1, stable=True)
    return chosen.sum(-1, dtype=torch.int32)[:, None], order.to(torch.int32)[:, None]
