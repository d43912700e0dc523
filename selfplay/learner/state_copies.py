"""The copies of the learners' state on ranks of several nodes (HSDP)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Replicas: TypeAlias = int | Literal["auto"]
"""Number of copies of the learners' state; auto: one per node if that is possible."""
SHARE = 0.5
"""Largest fraction of a GPU's memory for a rank's part of the state, if auto makes one copy per
node. The rest is for activations, gathered weights, reference policies and averages of weights."""
GB = 1e9


@dataclass(frozen=True, kw_only=True)
class StateCopies:
    """The number of copies of the learners' state, and the ranks of each one."""

    count: int
    """Number of copies."""
    order: Sequence[int]
    """Indices of all ranks, in an order in which the ranks of each copy are neighbours."""
    note: str = ""
    """A line for the user about the copies; empty if there is nothing to say."""


def choose_copies(
    nodes: Sequence[str],
    replicas: Replicas,
    *,
    state: float = 0.0,
    memory: float | None = None,
) -> StateCopies:
    """Return the copies of the learners' state, with the ranks of each node one after another.

    With auto there is one copy per node if all nodes have equally many ranks and the parts of the
    state leave enough memory; otherwise one copy is sharded over all ranks.

    Args:
        nodes: Node of each rank.
        replicas: Number of copies, which divides the number of ranks; auto: chosen here.
        state: Bytes of one copy: weights, gradients and moments. Only auto reads it.
        memory: Bytes of the smallest GPU of a rank. Only auto reads it. None: not known, or ranks
            on CPUs, and then memory does not count.
    """
    ranks = Counter(nodes)
    known = list(ranks)
    order = sorted(range(len(nodes)), key=lambda rank: known.index(nodes[rank]))
    count, why = _per_node(ranks, state, memory) if replicas == "auto" else (replicas, "")
    note = _described(count, [nodes[rank] for rank in order]) + why
    return StateCopies(count=count, order=order, note=f"runtime: {note}" if note else "")


def _described(count: int, nodes: Sequence[str]) -> str:
    """Return words about the copies on ranks of these nodes; nothing for one copy on one node."""
    if count == 1:
        several = len(set(nodes)) > 1
        return f"1 copy of the learners' state, sharded over {len(nodes)} ranks" if several else ""
    each = len(nodes) // count
    crossing = any(len(set(nodes[i : i + each])) > 1 for i in range(0, len(nodes), each))
    where = "on one rank" if each == 1 else f"sharded over {each} ranks"
    if each > 1 and len(set(nodes)) > 1:
        where += ", not all of one node" if crossing else " of one node"
    return f"{count} copies of the learners' state, each {where}"


def _per_node(ranks: Counter[str], state: float, memory: float | None) -> tuple[int, str]:
    """Return the number of copies for auto, and why there is one copy on several nodes."""
    numbers = list(ranks.values())
    if len(numbers) == 1:
        return 1, ""
    if len(set(numbers)) > 1:
        listed = ", ".join(map(str, numbers))
        return 1, f", because the nodes have unequal numbers of ranks ({listed})"
    part = state / numbers[0]
    if memory is not None and part > SHARE * memory:
        return 1, (
            f": with one copy per node, a rank's part would have {part / GB:.1f} GB, more than "
            f"{SHARE:.0%} of its GPU's {memory / GB:.1f} GB"
        )
    return len(ranks), ""
