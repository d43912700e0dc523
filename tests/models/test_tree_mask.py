"""Tests of the mask of a tree of tokens, from one number per token, against the tree itself."""

from random import Random

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from selfplay.models.tree_attention import additive, blocks, visible

BLOCKS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
QUERIES = ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")


def tree(columns: int, seed: int) -> tuple[list[int], torch.Tensor]:
    """Return the ends of the subtrees of a random depth-first tree, and what each token sees."""
    rng, path, parents = Random(seed), [0], [-1]
    for column in range(1, columns):
        if rng.random() < 0.03:
            path = path[: rng.randint(1, len(path))]
        parents.append(path[-1])
        path.append(column)
    ends, sees = list(range(columns)), torch.zeros(columns, columns, dtype=torch.bool)
    for column in range(columns):
        seen = column
        while seen >= 0:
            sees[column, seen] = True
            ends[seen] = max(ends[seen], column)
            seen = parents[seen]
    return ends, sees


@pytest.mark.parametrize("columns", [1, 127, 128, 129, 300, 768])
def test_one_number_per_token_is_the_whole_mask(columns: int) -> None:
    made = [tree(columns, seed) for seed in range(3)]
    ends = torch.tensor([ends for ends, _ in made], dtype=torch.int32)
    sees = torch.stack([sees for _, sees in made])
    assert torch.equal(visible(ends)[:, 0], sees)
    stem = columns // 3
    assert torch.equal(visible(ends, stem)[:, 0], sees[:, stem:])
    added = additive(visible(ends), torch.float32)[:, 0]
    assert torch.equal(added == 0, sees) and bool((added[~sees] < -1e38).all())
    found = blocks(ends)
    wanted = create_block_mask(found.mask_mod, 3, None, columns, columns, device="cpu")
    assert found.shape == (3, 1, columns, columns)
    for name in (*BLOCKS, *QUERIES):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    row, query, key = torch.meshgrid(*map(torch.arange, (3, columns, columns)), indexing="ij")
    assert torch.equal(found.mask_mod(row, torch.tensor(0), query, key), sees)


def test_the_blocks_of_a_long_row_need_no_square_mask() -> None:
    """For 65,536 columns, a mask takes 4 GiB and the blocks take 4 MiB."""
    ends = torch.full((1, 65_536), 65_535, dtype=torch.int32)
    ends[:, 128:256] = 255
    found = blocks(ends)
    sizes = [getattr(found, name).numel() for name in (*BLOCKS, *QUERIES)]
    assert sum(sizes) < 5 * 512**2
    assert found.full_kv_num_blocks is not None
    counts = found.full_kv_num_blocks[0, 0, :4]
    assert counts.tolist() == [0, 1, 1, 2]  # no later block sees the second block
