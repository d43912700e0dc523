"""Branching groups: the episodes of a group as a tree, in which some share their leading turns."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from selfplay.credit.base import CreditedTurn, Returns, learnable_turns
from selfplay.types import Group

Path = tuple[int, ...]
"""For every turn of an episode, the index of the sibling that played it: the episode itself, or one
that it branched off."""


@dataclass(frozen=True, kw_only=True)
class Candidate(CreditedTurn):
    """A turn of the tree, which counts once however many episodes contain it.

    `episode` is the first episode with the turn. `value` is computed over the tree: it is the mean
    over the values of the next stage's candidates, and at the end of an episode its own return.
    With independent episodes it is the return itself.
    """

    node: tuple[int, ...]
    """Node of the tree at which the turn was sampled: the sibling that played the last turn before
    the turn's stage, and the index of that last turn. Empty at the beginning, and in groups without
    branches, whose siblings are compared whatever came before."""


def path(group: Group, index: int) -> Path:
    """Return the path of one episode of the group."""
    episode = group.episodes[index]
    own = (index,) * len(episode.turns)
    if episode.branch_of is None:
        return own
    return (*path(group, episode.branch_of)[: episode.shared_turns], *own[episode.shared_turns :])


def places(credited_turns: Sequence[CreditedTurn]) -> list[Hashable]:
    """Return, for every turn, its key in the tree: equal for the same turn in several episodes."""
    keys: list[Hashable] = []
    paths: dict[tuple[str, int], Path] = {}
    for credited in credited_turns:
        leaf = (credited.group.id, credited.episode)
        if leaf not in paths:
            paths[leaf] = path(credited.group, credited.episode)
        keys.append((credited.group.id, paths[leaf][credited.place], credited.place))
    return keys


def candidates(groups: Sequence[Group], returns: Returns) -> list[Candidate]:
    """Return every turn of `base.learnable_turns` once, in order."""
    return [
        each for group in groups for each in _of_group(group, learnable_turns([group], returns))
    ]


def _of_group(group: Group, credited_turns: Sequence[CreditedTurn]) -> list[Candidate]:
    branching = any(episode.branch_of is not None for episode in group.episodes)
    paths = {credited.episode: path(group, credited.episode) for credited in credited_turns}
    through: dict[Hashable, dict[int, CreditedTurn]] = {}
    for credited, place in zip(credited_turns, places(credited_turns), strict=True):
        through.setdefault(place, {})[credited.episode] = credited
    nodes: list[Candidate] = []
    shares: dict[tuple[int, ...], dict[int, float]] = {}
    for leaves in through.values():
        credited = next(iter(leaves.values()))
        leaf = credited.episode
        share = shares.get(tuple(leaves))  # the weights do not change until the next branching
        if share is None:
            share = _shares({each: paths[each] for each in leaves}, credited.place + 1)
            shares[tuple(leaves)] = share
        nodes.append(
            Candidate(
                group=group,
                episode=leaf,
                place=credited.place,
                number=credited.number,
                move=credited.move,
                turn=credited.turn,
                first=credited.first,
                value=sum(share[each] * leaves[each].value for each in leaves),
                node=_node(credited, paths[leaf]) if branching else (),
            )
        )
    return nodes


def _node(credited: CreditedTurn, through: Path) -> tuple[int, ...]:
    """Return the node at which a turn's stage began: `Candidate.node`."""
    turns, start = credited.group.episodes[credited.episode].turns, credited.place
    while start and turns[start - 1].stage == credited.turn.stage:
        start -= 1
    return (through[start - 1], start - 1) if start else ()


def _shares(paths: Mapping[int, Path], depth: int) -> dict[int, float]:
    """Return each episode's weight in the value of a node: the mean over the node's children, each
    of which is a mean over its own children."""
    if len(paths) == 1:
        return dict.fromkeys(paths, 1.0)
    children: dict[int, dict[int, Path]] = {}
    while len(children) < 2:
        children = {}
        for leaf, through in paths.items():
            # An episode that has ended is a child of its own.
            child = through[depth] if depth < len(through) else -1 - leaf
            children.setdefault(child, {})[leaf] = through
        depth += 1
    return {
        leaf: share / len(children)
        for child in children.values()
        for leaf, share in _shares(child, depth).items()
    }
