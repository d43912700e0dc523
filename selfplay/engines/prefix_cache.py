"""Keys and values of prompts and completions that have ended, for prompts that begin like them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from selfplay.engines.kv_cache import SlotCache
from selfplay.engines.token_pool import TokenPool

SLACK = 8
"""An eviction frees at least 1 / SLACK of the capacity, so that few evictions are needed."""


@dataclass(kw_only=True, slots=True, eq=False)
class PrefixNode:
    """A sequence of tokens, which follows the tokens of the node's ancestors."""

    tokens: tuple[int, ...]
    """[n] token ids."""
    places: list[int]
    """[n] places of the tokens in the pool."""
    used: int = 0
    """Number of the latest call that used the node; a parent's is not smaller than a child's."""
    children: dict[int, "PrefixNode"] = field(default_factory=dict)
    """Continuations, by their first token."""


class PrefixCache:
    """A tree of token sequences with one policy's keys and values (RadixAttention, 2312.07104).

    `PolicyBatch` stores what its rows computed, and loads the beginnings of new prompts. All of it
    belongs to one version of the weights; a new version needs an empty cache. If it is full, the
    sequences that were not used for the longest time are evicted from their ends.
    """

    def __init__(self, capacity: int) -> None:
        """Args:
        capacity: Maximum number of tokens; 0 stores nothing.
        """
        self._pool = TokenPool(capacity)
        self._root = PrefixNode(tokens=(), places=[])
        self._calls = 0

    def __len__(self) -> int:
        """Return the number of stored tokens."""
        return self._pool.size - len(self._pool.free)

    def clear(self) -> None:
        """Drop all tokens and keep the memory for others."""
        self._root = PrefixNode(tokens=(), places=[])
        self._pool.free = [*range(self._pool.size)]

    def load(
        self, cache: SlotCache, rows: Sequence[int], prompts: Sequence[tuple[int, ...]]
    ) -> list[int]:
        """Copy the stored beginning of each prompt to its row, but never a prompt's last token.

        Returns the number of copied tokens of each prompt.
        """
        if not len(self):
            return [0] * len(prompts)
        self._calls += 1
        found = [self._match(prompt, len(prompt) - 1) for prompt in prompts]
        lengths = [len(places) for places in found]
        if any(lengths):
            at = _places(cache, rows, [0] * len(rows), found)
            self._pool.load(cache, *at)
            known = torch.tensor(lengths, device=cache.lengths.device)
            cache.lengths[torch.tensor(rows, device=known.device)] = known
        return lengths

    def store(self, cache: SlotCache, histories: Mapping[int, tuple[int, ...]]) -> int:
        """Store the tokens of rows that are not stored yet, as far as there is room.

        Returns the number of tokens that were stored.

        Args:
            cache: The cache of all rows.
            histories: Tokens of each row, from its first column on.
        """
        if not self._pool.capacity or not histories:
            return 0
        self._calls += 1
        rows, starts, places = [], [], []
        for row, tokens in histories.items():
            start, added = self._insert(tokens)
            if added:
                rows.append(row)
                starts.append(start)
                places.append(added)
        if rows:
            self._pool.save(cache, *_places(cache, rows, starts, places))
        return sum(map(len, places))

    def _match(self, tokens: tuple[int, ...], limit: int) -> list[int]:
        """Return the places of the longest stored prefix of at most `limit` tokens."""
        found: list[int] = []
        node = self._root
        while len(found) < limit and (child := node.children.get(tokens[len(found)])):
            child.used = self._calls
            rest = tokens[len(found) : min(limit, len(found) + len(child.tokens))]
            count = common(child.tokens, rest)
            found += child.places[:count]
            if count < len(child.tokens):
                break
            node = child
        return found

    def _insert(self, tokens: tuple[int, ...]) -> tuple[int, list[int]]:
        """Add a sequence; return the number of tokens that were stored before, and the places of
        new ones."""
        at, node = 0, self._root
        while at < len(tokens) and (child := node.children.get(tokens[at])):
            count = common(child.tokens, tokens[at : at + len(child.tokens)])
            if count < len(child.tokens):
                _split(child, count)
            child.used = self._calls
            at, node = at + count, child
        wanted = len(tokens) - at
        if wanted > self._pool.available():
            self._evict(wanted - self._pool.available())
        places = self._pool.take(min(wanted, self._pool.available()))
        if places:
            new = tokens[at : at + len(places)]
            node.children[new[0]] = PrefixNode(tokens=new, places=places, used=self._calls)
        return at, places

    def _evict(self, tokens: int) -> None:
        """Free at least so many places, if nodes that this call has not used hold as many."""
        wanted = max(tokens, self._pool.capacity // SLACK)
        # Among equally old nodes the deepest is first: no node that stays loses earlier tokens.
        nodes = sorted(
            (node.used, -depth, number, parent, node)
            for number, (depth, parent, node) in enumerate(self._nodes())
            if node.used < self._calls
        )
        for _, _, _, parent, node in nodes:
            if wanted <= 0:
                return
            del parent.children[node.tokens[0]]
            self._pool.free += node.places
            wanted -= len(node.places)

    def _nodes(self) -> Iterator[tuple[int, PrefixNode, PrefixNode]]:
        """Yield each node with its depth and its parent."""
        waiting = [(1, self._root, child) for child in self._root.children.values()]
        while waiting:
            depth, parent, node = waiting.pop()
            yield depth, parent, node
            waiting += [(depth + 1, node, child) for child in node.children.values()]


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the length of the longest common prefix of two sequences."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # the first `low` tokens are equal, the first `high` are not
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _split(node: PrefixNode, count: int) -> None:
    """Let a node keep its first `count` tokens, and a new child have the others."""
    tokens, places = node.tokens, node.places
    rest = PrefixNode(
        tokens=tokens[count:], places=places[count:], used=node.used, children=node.children
    )
    node.tokens, node.places = tokens[:count], places[:count]
    node.children = {rest.tokens[0]: rest}


def _places(
    cache: SlotCache, rows: Sequence[int], starts: Sequence[int], places: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return row, column and place of each token of rows, whose columns begin at `starts`."""
    counts = [len(each) for each in places]
    columns = [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
    flat = [place for each in places for place in each]
    device = cache.lengths.device
    return (
        torch.from_numpy(np.repeat(np.asarray(rows), counts)).to(device),
        torch.from_numpy(np.concatenate(columns)).to(device),
        torch.tensor(flat, dtype=torch.long, device=device),
    )
