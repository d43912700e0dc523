"""Tests of the memory of a pass at its peak, compared with sums made by hand."""

from typing import Any

import pytest

from selfplay.plan.cluster import ClusterSpec, load_cluster
from selfplay.plan.model_shape import ModelShape
from selfplay.plan.pass_memory import pass_memory

SHAPE = ModelShape(
    layers=3, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocabulary=100
)
H100 = load_cluster("gpus_1", [])[0].device
LAYER = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16 + 2 * 8
"""Parameters of a layer."""
HEAD = 800
"""Parameters of the output embedding."""
KEPT = 2 * (4 * 8 + 2 * (8 + 4) + 4 * 16) + 4 * 2 + 8 * 8
"""Bytes per token and layer of `ModelShape.activations`."""


def found(rank: int, *, tokens: float, **settings: Any) -> tuple[float, float, float]:
    """Return the bytes of a pass that reads the logits of all tokens, in pieces of 4 tokens."""
    given: dict[str, Any] = {"devices": 1, "checkpointing": True, "logits": 4} | settings
    wide = given.pop("wide", not rank)
    layout = ClusterSpec(device=H100, **given)
    memory = pass_memory(
        SHAPE,
        layout,
        adapter=rank > 0,
        converted=wide and layout.sharded == 1 and layout.precision == "mixed",
        tokens=tokens,
        completions=tokens,
    )
    return memory.unsharded, memory.activations, memory.logits


def test_the_sizes_of_the_shape() -> None:
    assert (SHAPE.layer_parameters, SHAPE.embedding) == (LAYER, HEAD)
    assert SHAPE.activations() == KEPT


@pytest.mark.parametrize(
    ("rank", "settings", "unsharded", "per_token"),
    [
        # A float32 gradient of the output embedding; a layer's input in float32.
        (0, {}, 4 * HEAD, 3 * 4 * 8),
        # Copies of all layers in 16 bits; seven more values of 16 or 32 bits per unit of the width.
        (0, {"checkpointing": False}, 4 * HEAD + 2 * 3 * LAYER, 3 * (KEPT + 8 * 8 + 10 * 8)),
        (0, {"precision": "float32"}, 4 * HEAD, 3 * 4 * 8),
        (16, {}, 0, 3 * 2 * 8),
        (16, {"checkpointing": False}, 0, 3 * (KEPT + 4 * 8)),
        # A base in float32: copies in 16 bits, and the same converted values.
        (16, {"wide": True}, 0, 3 * 4 * 8),
        # Both embeddings and a layer in 16 bits, and a copy of one of them in float32.
        (0, {"devices": 4}, 2 * LAYER + 2 * 2 * HEAD + (4 + 4) * HEAD, 3 * 2 * 8),
        (16, {"devices": 4}, 2 * LAYER + 2 * 2 * HEAD, 3 * 2 * 8),
    ],
)
def test_with_few_tokens_the_peak_is_at_the_head(
    rank: int, settings: dict[str, Any], unsharded: float, per_token: float
) -> None:
    logits = 2 * 100 * (12 if rank else 16)
    assert found(rank, tokens=2, **settings) == (unsharded, 2 * per_token, logits)


@pytest.mark.parametrize(
    ("rank", "settings", "unsharded", "per_token"),
    [
        # 16 bits of a layer and of its gradient, and its gradient in float32.
        (0, {}, (2 + 2 + 4) * LAYER, 3 * 4 * 8 + KEPT + 8 * 8 + 10 * 8 + 2 * 2 * 16 + 4 * 8),
        (16, {}, 0, 3 * 2 * 8 + KEPT + 4 * 8 + 2 * 2 * 16 + 4 * 8),
        # A layer with its gradients, one embedding, and the gradient of the output embedding.
        (
            0,
            {"devices": 4},
            (2 + 2 + 4) * LAYER + (2 + 4) * HEAD,
            3 * 2 * 8 + KEPT + 8 * 8 + 2 * 2 * 16 + 4 * 8,
        ),
        (
            16,
            {"devices": 4},
            2 * 2 * LAYER + 2 * 2 * HEAD,
            3 * 2 * 8 + KEPT + 4 * 8 + 2 * 2 * 16 + 4 * 8,
        ),
    ],
)
def test_with_many_tokens_the_peak_is_at_a_layer(
    rank: int, settings: dict[str, Any], unsharded: float, per_token: float
) -> None:
    assert found(rank, tokens=1000, **settings) == (unsharded, 1000 * per_token, 0)


def test_logits_come_in_pieces_which_add_up_their_gradients() -> None:
    assert found(16, tokens=3, checkpointing=False)[2] == 3 * 100 * 12
    assert found(16, tokens=5, checkpointing=False)[2] == 4 * 100 * 12
    assert found(16, tokens=5, checkpointing=False, logits=0)[2] == 5 * 100 * 12
    assert found(0, tokens=4)[::2] == (4 * HEAD, 4 * 100 * 16)
    assert found(0, tokens=5)[::2] == (8 * HEAD, 4 * 100 * 16)


def test_an_adapter_over_float32_has_copies_of_its_layers() -> None:
    assert found(16, tokens=1000, wide=True)[0] == 2 * LAYER
    assert found(16, tokens=1000, wide=True, checkpointing=False)[0] == 3 * 2 * LAYER
    assert found(16, tokens=1000, wide=True, devices=4)[0] == 2 * 2 * LAYER + 2 * 2 * HEAD
