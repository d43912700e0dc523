"""Branches: the episodes of a group as a tree, where some share their leading turns."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from selfplay.credit.base import CreditedTurn, Returns, learnable_turns
from selfplay.types import Group

Path = tuple[int, ...]
"""For every turn of an episode, the sibling that played it: itself, or one that it branched off."""


@dataclass(frozen=True, kw_only=True)
class Candidate(CreditedTurn):
    """A turn of the tree, there once however many episodes go through it.

    Its `episode` is the first of those, and its `value` that of the tree: the mean over the next
    stage's candidates of their values, down to the episodes' own returns. With independent
    episodes that is the return itself.
    """

    node: tuple[int, ...]
    """Where it was a choice: the sibling that played the turn before its stage, and that turn's
    index; empty at the beginning. Also in a group without branches, where siblings are compared
    whatever came before."""


def path(group: Group, index: int) -> Path:
    """The path of one episode of the group."""
    episode = group.episodes[index]
    own = (index,) * len(episode.turns)
    if episode.branch_of is None:
        return own
    return (*path(group, episode.branch_of)[: episode.shared_turns], *own[episode.shared_turns :])


def places(credited_turns: Sequence[CreditedTurn]) -> list[Hashable]:
    """For every play, its place in the tree: equal for the same turn in several episodes."""
    found: list[Hashable] = []
    paths: dict[tuple[str, int], Path] = {}
    for play in credited_turns:
        leaf = (play.group.id, play.episode)
        if leaf not in paths:
            paths[leaf] = path(play.group, play.episode)
        found.append((play.group.id, paths[leaf][play.place], play.place))
    return found


def candidates(groups: Sequence[Group], returns: Returns) -> list[Candidate]:
    """Every turn of `comparison.plays` once, in order."""
    return [
        each for group in groups for each in _of_group(group, learnable_turns([group], returns))
    ]


def _of_group(group: Group, credited_turns: Sequence[CreditedTurn]) -> list[Candidate]:
    branching = any(episode.branch_of is not None for episode in group.episodes)
    paths = {play.episode: path(group, play.episode) for play in credited_turns}
    through: dict[Hashable, dict[int, CreditedTurn]] = {}
    for play, place in zip(credited_turns, places(credited_turns), strict=True):
        through.setdefault(place, {})[play.episode] = play
    found: list[Candidate] = []
    shares: dict[tuple[int, ...], dict[int, float]] = {}
    for leaves in through.values():
        play = next(iter(leaves.values()))
        leaf = play.episode
        share = shares.get(tuple(leaves))  # the same until the next branching
        if share is None:
            share = _shares({each: paths[each] for each in leaves}, play.place + 1)
            shares[tuple(leaves)] = share
        found.append(
            Candidate(
                group=group,
                episode=leaf,
                place=play.place,
                number=play.number,
                turn=play.turn,
                first=play.first,
                value=sum(share[each] * leaves[each].value for each in leaves),
                node=_node(play, paths[leaf]) if branching else (),
            )
        )
    return found


def _node(play: CreditedTurn, through: Path) -> tuple[int, ...]:
    """Where a turn's stage began: `Candidate.node`."""
    turns, start = play.group.episodes[play.episode].turns, play.place
    while start and turns[start - 1].stage == play.turn.stage:
        start -= 1
    return (through[start - 1], start - 1) if start else ()


def _shares(paths: Mapping[int, Path], depth: int) -> dict[int, float]:
    """What each episode counts in a mean over the children of a node, each a mean over its own."""
    if len(paths) == 1:
        return dict.fromkeys(paths, 1.0)
    children: dict[int, dict[int, Path]] = {}
    while len(children) < 2:
        children = {}
        for leaf, through in paths.items():
            # Past its end an episode is a child of its own.
            child = through[depth] if depth < len(through) else -1 - leaf
            children.setdefault(child, {})[leaf] = through
        depth += 1
    return {
        leaf: share / len(children)
        for child in children.values()
        for leaf, share in _shares(child, depth).items()
    }
