"""Largest numbers of tokens for which a model computes a token independently of other rows.

A token's result must depend only on the tokens before it: not on a longer row in the same pass, and
not on the padding. For some models this holds only up to a certain number of tokens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

SELECTIONS = ("keep_window_size", "index_topk")
"""Settings of attention that uses only the best keys. In a longer row these are chosen among all
keys, including those of later tokens."""
OFFSETS = 8
"""Rows that a table of positions may have beyond the positions (OPT has 2)."""


@dataclass(frozen=True, kw_only=True)
class ContextBound:
    """A largest number of tokens. `reach` makes it; errors quote it."""

    tokens: int
    """Largest number of tokens."""
    reason: str
    """Reason for the bound, as a phrase."""


@dataclass(frozen=True, kw_only=True)
class ContextReach:
    """Bounds of one model, in tokens. `reach` makes it; packing and engines read it."""

    table: ContextBound | None = None
    """Rows of a table of positions (GPT-2's learned ones, GPT-J's sines): a pass with more columns
    may fail, even if all positions are within the table."""
    window: ContextBound | None = None
    """Width of a local attention window that is counted in columns and not in positions."""
    frequency_change: ContextBound | None = None
    """Longest row that has the rotary frequencies of short rows. One longer row in a pass gives all
    other rows the rotary frequencies of long rows (longrope, 2402.13753)."""
    longest: ContextBound | None = None
    """Longest row that is computed correctly: in a longer row a token depends on later tokens or on
    the length of earlier rows."""

    def shared(self) -> int | None:
        """Return the largest width of a row of several samples; None: no bound."""
        return _least(self.table, self.window, self.longest)

    def served(self) -> ContextBound | None:
        """Return the bound of the length of rows that share a cache; None: no bound."""
        bounds = (self.window, self.frequency_change, self.longest)
        known = [bound for bound in bounds if bound is not None]
        return min(known, key=lambda bound: bound.tokens, default=None)

    def far(self, tokens: int) -> bool:
        """Return True if a row of `tokens` tokens has the rotary frequencies of long rows."""
        return self.frequency_change is not None and tokens > self.frequency_change.tokens


def reach(model: PreTrainedModel) -> ContextReach:
    """Return the bounds of a model, from its config and from the tables in its modules."""
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    longest = None
    if limit and any("dynamic" in _kind(rope) for rope in _ropes(config)):
        reason = "dynamic rope, which changes with the longest row so far"
        longest = ContextBound(tokens=int(limit), reason=reason)
    for name in SELECTIONS:
        if isinstance(tokens := getattr(config, name, None), int) and tokens > 0:
            reason = f"attention to a few chosen tokens ({name}={tokens})"
            longest = ContextBound(tokens=tokens, reason=reason)
    return ContextReach(
        table=_table(model, limit),
        window=_window(config),
        frequency_change=frequency_change(model.config),
        longest=longest,
    )


def frequency_change(config: PretrainedConfig) -> ContextBound | None:
    """Return the `ContextReach.frequency_change` of a model with this config."""
    text = config.get_text_config()
    for rope in _ropes(text):
        if _kind(rope) == "longrope":
            original = (
                rope.get("original_max_position_embeddings")
                or getattr(text, "original_max_position_embeddings", None)
                or text.max_position_embeddings
            )
            reason = "longrope, which changes with the longest row"
            return ContextBound(tokens=int(original), reason=reason)
    return None


def _kind(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type", rope.get("type", "")))


def _window(config: Any) -> ContextBound | None:
    """Return GPT-Neo's window. `tree_attention.unordinary` handles the windows of other models."""
    size, kinds = getattr(config, "window_size", None), getattr(config, "attention_layers", None)
    if not isinstance(size, int) or size < 1 or (kinds and "local" not in kinds):
        return None
    return ContextBound(tokens=size, reason=f"local attention (window_size={size})")


def _ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of rotary positions: one mapping, or one for each kind of layer."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(given, Mapping):
        return
    yield given
    yield from (rope for rope in given.values() if isinstance(rope, Mapping))


def _table(model: PreTrainedModel, limit: Any) -> ContextBound | None:
    """Return the table of positions, if the model has one."""
    if not isinstance(limit, int) or limit < 1:
        return None
    sizes = range(limit, limit + OFFSETS + 1)
    tokens = model.get_input_embeddings()
    tables = (
        isinstance(module, torch.nn.Embedding) and module.num_embeddings in sizes
        for module in model.modules()
        if module is not tokens
    )
    buffers = (size in sizes for buffer in model.buffers() for size in buffer.shape)
    if any(tables) or any(buffers):
        return ContextBound(tokens=limit, reason="a table of positions")
    return None


def _least(*bounds: ContextBound | None) -> int | None:
    return min((bound.tokens for bound in bounds if bound is not None), default=None)
