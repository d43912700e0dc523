"""Division of new prompts into parts, so that a common beginning is computed once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from selfplay.engines.prefix_cache import common

PASS = 64
"""Cost of a pass, in tokens: another pass is made only if it saves more tokens."""
DEEPEST = 8
"""Maximum number of waves, each of which waits for the one before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptPart:
    """The end of one prompt, which is computed in the prompt's own row.

    The tokens before the part are in the row already, or are copied from the row of `source`.
    `prompt_parts` makes it; `PolicyBatch` computes it.
    """

    prompt: int
    """Index of the prompt."""
    start: int
    """Number of tokens before the part."""
    source: int | None = None
    """Index of the prompt from whose row these tokens are copied; None: they need no copy."""
    wave: int = 0
    """Number of waves that must be computed before the part, because it copies from them."""

    def moved(self, by: int) -> "PromptPart":
        """Return the part for a list with so many other prompts before its own."""
        source = None if self.source is None else self.source + by
        return replace(self, prompt=self.prompt + by, source=source)


def prompt_parts(
    prompts: Sequence[tuple[int, ...]], known: Sequence[int]
) -> list[list[PromptPart]]:
    """Return one part of each prompt, in waves: a wave copies only from earlier ones.

    Args:
        prompts: Distinct prompts in ascending order, so that those that begin alike are neighbours.
        known: Number of tokens of each prompt whose keys and values are in its row; at least the
            last token is not.
    """
    shared = [0, *(common(one, two) for one, two in pairwise(prompts))]
    best: list[PromptPart] = []
    least = float("inf")
    for depth in range(DEEPEST):
        parts = _divided(prompts, known, shared, depth)
        cost = sum(len(prompts[part.prompt]) - part.start for part in parts) + PASS * depth
        if cost < least:
            best, least = parts, cost
        if max(part.wave for part in parts) < depth:
            break
    waves: list[list[PromptPart]] = [[] for _ in range(1 + max(part.wave for part in best))]
    for part in best:
        waves[part.wave].append(part)
    return waves


def _divided(
    prompts: Sequence[tuple[int, ...]], known: Sequence[int], shared: Sequence[int], depth: int
) -> list[PromptPart]:
    """Return the part of each prompt, with at most `depth` waves after the first.

    Args:
        prompts: The prompts in ascending order.
        known: See `prompt_parts`.
        shared: Number of tokens that each prompt shares with the one before it.
        depth: Maximum of `PromptPart.wave`.
    """
    parts: list[PromptPart] = []
    for prompt in range(len(prompts)):
        source: int | None = prompt - 1 if prompt else None
        start = shared[prompt]
        # The row that computes the last shared token, or an earlier one if that would be too deep.
        while source is not None:
            before = parts[source]
            start = min(start, before.start) if before.wave >= depth else start
            if before.start < start and before.wave < depth:
                break
            source = before.source
        if source is None or start <= known[prompt]:
            parts.append(PromptPart(prompt=prompt, start=known[prompt]))
        else:
            wave = parts[source].wave + 1
            parts.append(PromptPart(prompt=prompt, start=start, source=source, wave=wave))
    return parts


def passes(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Divide parts among forward passes, so that tokens, padding and passes cost the least.

    All parts of a pass are padded to the longest. Parts of similar length share a pass, and a pass
    costs as much as `PASS` tokens.

    Args:
        lengths: Number of tokens of each part, at least 1.
        limit: Maximum number of tokens of a pass with padding; a longer part has its own pass.

    Returns:
        Indices of the parts of each pass, the shortest parts first.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ascending = np.array([lengths[index] for index in order], dtype=np.int64)
    # A pass may begin where the length changes: no better division cuts a run of equal lengths.
    begins = np.flatnonzero(np.diff(ascending, prepend=0))
    ends = [*begins[1:].tolist(), len(order)]
    least, origins = np.zeros(len(ends) + 1), []
    for number, end in enumerate(ends, start=1):
        width = int(ascending[end - 1])
        counts = end - begins[:number]
        tries = least[:number] + counts * width + PASS * np.ceil(counts / _fit(width, limit))
        origins.append(int(tries.argmin()))
        least[number] = tries[origins[-1]]
    found: list[list[int]] = []
    number = len(ends)
    while number:
        first, end = int(begins[origins[number - 1]]), ends[number - 1]
        size = _fit(int(ascending[end - 1]), limit)
        found += [order[max(first, at - size) : at] for at in range(end, first, -size)]
        number = origins[number - 1]
    return found[::-1]


def _fit(width: int, limit: int) -> int:
    """Return the number of parts of one width in a pass."""
    return max(1, limit // width)
