"""What a model's attention can take: a cache with a column per token, a tree of tokens in a row."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

CLEARLY_NEARER = 8
"""How many times nearer to the truth than any mistake a tree's hidden states must come."""
ROUNDING = 32
"""Differences below so many units of rounding tell nothing."""


def unordinary(model: PreTrainedModel) -> str:
    """What keeps the model from ordinary attention over all earlier tokens; empty if nothing."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if getattr(model, "_is_stateful", False):
        return "recurrent layers"
    if kinds != {"full_attention"}:
        return f"layers of other kinds than full attention ({', '.join(sorted(kinds))})"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return "sliding-window attention"
    if model.config._attn_implementation not in ("sdpa", "eager"):
        return f"attention of the kind {model.config._attn_implementation!r}"
    return ""


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to the scores: 0 where `visible`, the least number of `dtype` elsewhere.

    Eager attention knows no other; sdpa converts to it in every layer anew.
    """
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, torch.finfo(dtype).min
    )


def run_tree(
    module: Callable[..., Any], model: PreTrainedModel, ids: Tensor, visible: Tensor, places: Tensor
) -> list[Any]:
    """A model, or its decoder, on rows that are trees: its outputs, to be joined along the columns.

    Args:
        module: `model` or its decoder.
        model: The model.
        ids: [R, T] tokens.
        visible: [R, 1, T - stem, T] what each token may see, but for the first `stem` columns of
            all rows. Those see what stands before them, and come first and without a mask.
        places: [R, T] positions.
    """
    device, stem = model.device, ids.shape[1] - visible.shape[2]
    ids, places = ids.to(device), places.to(device)
    mask = additive(visible.to(device), model.dtype)
    if not stem:
        return [module(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False)]
    cache = DynamicCache(config=model.config)
    return [
        module(input_ids=ids[:, :stem], past_key_values=cache, use_cache=True),
        module(
            input_ids=ids[:, stem:],
            attention_mask=mask,
            position_ids=places[:, stem:],
            past_key_values=cache,
            use_cache=True,
        ),
    ]


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout and without gradients, and afterwards as before."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def refuses_trees(model: PreTrainedModel) -> str:
    """Why the model cannot take a tree of tokens in one row; empty if it can.

    Layers with a window or a state would pass for a tree that is smaller than the window; the
    config tells of them. The others are tried: a small tree with two branches, as one row and as
    one row behind its stem, must come much nearer to the two branches as rows of their own than
    the mistakes do that a model can make, to ignore the mask and to ignore the positions.
    """
    if reason := unordinary(model):
        return reason
    stem, branches = [5, 6, 7, 5], [[8, 9, 6], [7, 5, 9]]
    vocabulary = int(model.config.get_text_config().vocab_size)
    rows = torch.tensor([stem + branch for branch in branches]) % vocabulary
    tree = torch.tensor([stem + branches[0] + branches[1]]) % vocabulary
    visible = torch.ones(1, 1, 10, 10, dtype=torch.bool).tril()
    visible[..., 7:, 4:7] = False
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 4, 5, 6]])
    tril = torch.ones_like(visible).tril()
    tried = {
        "tree": (visible, positions),
        "behind a stem": (visible[:, :, len(stem) :], positions),
        "without mask": (tril, positions),
        "without positions": (visible, torch.arange(10)[None]),
    }
    try:
        with evaluating(model):
            rows_out = model(input_ids=rows.to(model.device), use_cache=False).logits.double()
            truth = torch.cat([rows_out[0], rows_out[1, len(stem) :]])
            apart = {}
            for name, (mask, places) in tried.items():
                parts = run_tree(model, model, tree, mask, places)
                found = torch.cat([part.logits for part in parts], dim=1)[0]
                apart[name] = float((found.double() - truth).abs().max())
    except Exception as error:  # whatever a model's own code makes of what it does not know
        return f"a forward pass that does not take a tree's mask ({type(error).__name__})"
    distance = max(apart["tree"], apart["behind a stem"])
    leak, shift = apart["without mask"], apart["without positions"]
    least = ROUNDING * torch.finfo(model.dtype).eps * float(truth.abs().max())
    if not leak > least:
        return "attention on which a mask has no effect that can be told from rounding"
    mistakes = [leak, shift] if shift > least else [leak]  # some models know no positions
    if not distance * CLEARLY_NEARER <= min(mistakes):
        return "attention that does not follow a tree's mask and positions"
    return ""
