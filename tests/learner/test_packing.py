"""Tests of trie packing: every distinct token is computed once, with the gradient of rows."""

from random import Random
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from selfplay.learner import batch as batches
from selfplay.learner.batch import cut, pad
from selfplay.learner.objective import PolicyLoss
from selfplay.learner.packing import CPU, GPU, Packer, attention_share, common
from selfplay.models.tree_attention import visible
from selfplay.types import Sample
from tests.helpers.builders import SIZES, mixture, sample
from tests.helpers.shared_prefixes import (
    apart,
    branches,
    conversations,
    gradient,
    made,
    siblings,
    words,
)

TRIE = Packer(packing="trie")


@pytest.mark.parametrize("make", [siblings, conversations, branches])
@pytest.mark.parametrize("max_tokens", [10_000, 30, 1])
@pytest.mark.parametrize(
    ("aggregate", "stem"), [("token_mean", 128), ("sequence_mean", 1), ("sequence_mean", 6)]
)
def test_the_gradient_is_that_of_rows(
    make: Any, aggregate: Any, max_tokens: int, stem: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check an entropy bonus, ratio and clip, for several sizes of rows."""
    monkeypatch.setattr(batches, "STEM", stem)
    objective = PolicyLoss(aggregate=aggregate, entropy=0.1)
    rows, plain = gradient(make(), "rows", made("gpt2"), objective=objective)
    packed, found = gradient(
        make(), "trie", made("gpt2"), objective=objective, max_tokens=max_tokens
    )
    assert apart(packed, rows) < 1e-10
    for name in ("loss", "policy_kl", "surprisal", "clipped"):
        assert found[name] == pytest.approx(plain[name], abs=1e-6)


def test_long_prompts_have_the_gradient_of_rows_too() -> None:
    """Check the default `auto`, with a stem that is computed before its branches."""
    rng = Random(4)
    prompts = [words(rng, 150), words(rng, 140)]
    given = [sample(prompt, words(rng, 8), rng.gauss(0, 1)) for prompt in prompts * 3]
    rows, plain = gradient(given, "rows")
    packed, found = gradient(given, "auto")
    assert apart(packed, rows) < 1e-6
    assert plain["computed_tokens"] == 6 * 157 and found["computed_tokens"] == 2 * (150 + 3 * 7)


@pytest.mark.parametrize(("make", "tokens"), [(siblings, 41), (conversations, 74), (branches, 21)])
def test_every_distinct_token_is_computed_once(make: Any, tokens: int) -> None:
    """Check that the number of tokens is that of the distinct prefixes."""
    given = make()
    prefixes = set()
    for one in given:
        turn = one.turn
        last = max(place for place, counts in enumerate(turn.loss_mask) if counts)
        path = turn.prompt_ids + turn.completion_ids[:last]
        prefixes |= {path[: count + 1] for count in range(len(path))}
    rows = TRIE.rows(given, max_tokens=10_000)
    assert sum(row.width for row in rows) == len(prefixes) == tokens


def test_a_row_is_a_tree_with_positions_along_its_paths() -> None:
    given = [sample([1, 2], [3, 4, 9], 1.0), sample([1, 2], [3, 5, 9], 1.0), sample([1], [2], 1.0)]
    (row,) = TRIE.rows(given, max_tokens=100)
    batch = pad([row])
    assert batch.samples == (given[2], given[0], given[1])
    assert batch.ids.tolist() == [[1, 2, 3, 4, 5]]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 3]]
    assert batch.ends is not None and batch.ends.tolist() == [[4, 4, 4, 3, 4]]
    assert visible(batch.ends)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 0, 1],
    ]
    # The targets are 2 after 1, 3 after 2 (for two samples), 4 and 5 after 3, 9 after 4 and 5.
    assert batch.places.tolist() == [0, 1, 2, 2, 3, 4]
    assert batch.targets.tolist() == [2, 3, 4, 5, 9, 9]
    found = batch.scatter(torch.arange(6.0), -torch.ones(3, 3))
    assert found.tolist() == [[0, -1, -1], [1, 2, 4], [1, 3, 5]]


def test_a_row_has_a_mask_only_for_the_branches_after_its_stem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "STEM", 2)
    given = [sample([1, 2], [3, 4, 9], 1.0), sample([1, 2], [3, 5, 9], 1.0), sample([1], [2], 1.0)]
    (row,) = TRIE.rows(given, max_tokens=100)
    assert (row.stem, row.width) == (4, 5)
    batch = pad([row])
    assert batch.ends is not None and batch.stem == 4
    assert visible(batch.ends, batch.stem)[0, 0].int().tolist() == [[1, 1, 1, 0, 1]]
    other = TRIE.rows([sample([7, 8], [2, 1], 1.0), sample([7, 9], [2, 1], 1.0)], max_tokens=100)
    batch = pad([row, *other])  # the stem of both is the shorter one, three tokens
    assert batch.ends is not None and batch.stem == 3
    assert visible(batch.ends, batch.stem)[:, 0].int().tolist() == [
        [[1, 1, 1, 1, 0], [1, 1, 1, 0, 1]],
        [[1, 0, 0, 1, 0], [1, 0, 0, 1, 1]],
    ]


def test_a_conversation_without_branches_needs_no_mask() -> None:
    given = conversations()[:3]
    (row,) = Packer(packing="auto", attention=10).rows(given, max_tokens=100)
    batch = pad([row])
    assert row.stem == row.width and batch.ends is None and len(batch.samples) == 3
    assert batch.positions.tolist() == [list(range(row.width))]


def test_a_token_is_read_once_for_each_temperature() -> None:
    given = [sample([1, 2], [3], 1.0), sample([1, 2], [3], 1.0, temperature=0.5)] * 2
    batch = pad(TRIE.rows(given, max_tokens=100))
    assert batch.ids.tolist() == [[1, 2]]
    assert batch.temperature.tolist() == [0.5, 1.0] and len(batch.samples) == 4


def test_rows_stay_within_the_limit_and_hold_every_sample_once() -> None:
    given = [*siblings(), *conversations(), *branches()]
    for limit in (1, 20, 40, 1000):
        rows = TRIE.rows(given, max_tokens=limit)
        held = [span.sample for row in rows for span in row.spans]
        assert len(held) == len(given) and {id(s) for s in held} == {id(s) for s in given}
        assert all(row.width <= limit or len(row.spans) == 1 for row in rows)
        for batch in map(pad, cut(rows, max_tokens=limit)):
            assert batch.ids.numel() <= limit or len(batch.ids) == 1


@pytest.mark.parametrize("packing", ["auto", "trie", "rows"])
def test_no_samples_make_no_rows(packing: Any) -> None:
    """Check a rank without samples, if a step has fewer samples than there are ranks."""
    assert Packer(packing=packing, attention=0.5).rows([], max_tokens=64) == []


def test_auto_shares_long_prompts_and_leaves_short_ones_alone() -> None:
    rng = Random(3)

    def group(prompt: int) -> list[Sample]:
        shared = words(rng, prompt)
        return [sample(shared, words(rng, 32), 1.0) for _ in range(8)]

    # This attention cost is of a model with 128 channels in 4 layers of 0.2 million parameters.
    packer = Packer(packing="auto", attention=0.0012)
    long, short = group(512), group(8)
    shared = packer.rows([*long, *short], max_tokens=10_000)
    assert sorted(len(row.spans) for row in shared) == [1] * 8 + [8]
    # If attention costs nothing, a short prompt is shared; if it costs the most, it is not.
    middle = group(20)
    assert len(Packer(packing="auto").rows(middle, max_tokens=10_000)) == 1
    assert len(Packer(packing="auto", attention=10).rows(middle, max_tokens=10_000)) == 8


def groups(count: int, prompt: int, siblings: int, new: int) -> list[Sample]:
    """Return `siblings` samples of each of `count` openings; siblings differ in the next token."""
    rng = Random(0)
    return [
        sample((*opening, k), words(rng, new), 1.0)
        for opening in [(g, *words(rng, prompt)) for g in range(count)]
        for k in range(siblings)
    ]


@pytest.mark.parametrize(("costs", "short"), [(CPU, 22_540), (GPU, 32 * 1025)])
def test_a_gpu_computes_short_prompts_again(costs: Any, short: int) -> None:
    """Check two cases that were measured on an H100.

    Shared rows took 0.25 and 1.19 times as long as a row for each sample, which needs no mask.
    """
    packer = Packer(packing="auto", attention=2.6e-4, costs=costs)  # the shape of Qwen3-0.6B
    long = packer.rows(groups(1, 4096, 16, 256), max_tokens=32_768)
    assert [row.width for row in long] == [4097 + 16 * 256]
    found = packer.rows(groups(4, 512, 8, 512), max_tokens=32_768)
    assert sum(row.width for row in found) == short


def test_only_the_experts_that_a_token_uses_count() -> None:
    """Check a mixture that uses 2 of 8 experts; with all 8 the fraction would be about a third."""
    sparse = mixture(moe_intermediate_size=64)
    sizes = {**SIZES, "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 2 * 64}
    dense = Qwen3ForCausalLM(Qwen3Config(**sizes))
    assert attention_share(sparse) == pytest.approx(attention_share(dense), rel=0.2)


def test_the_common_prefix() -> None:
    one, other = torch.tensor([1, 2, 3]).numpy(), torch.tensor([1, 2, 4, 5]).numpy()
    assert [common(one, other), common(one, one), common(one[:0], one)] == [2, 3, 0]
