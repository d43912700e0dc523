"""Stages of recorded episodes, and the jobs and groups that branch off them."""

from collections.abc import Sequence
from dataclasses import replace

from selfplay.rollout import Job
from selfplay.sampler import Play
from selfplay.types import Episode, Group


def stage_starts(episode: Episode) -> list[int]:
    """Where each stage begins: the index of its first turn."""
    stages = [turn.stage for turn in episode.turns]
    return [i for i, stage in enumerate(stages) if i == 0 or stage != stages[i - 1]]


def branch(group: Group, parent: int, start: int) -> Job:
    """An episode that shares the turns before `start` with a sibling."""
    episode = group.episodes[parent]
    job = again(episode)
    return replace(job, prefix=episode.turns[:start], parent=parent)


def again(episode: Episode) -> Job:
    """An episode from the same beginning, played by the same policies."""
    return Job(task=episode.task, seed=episode.seed, seating=episode.seating)


def grow(groups: Sequence[Group], jobs: Sequence[Sequence[Job]], play: Play) -> list[Group]:
    """The groups with more siblings: those of `jobs`, played all at once."""
    numbered = [
        replace(job, member=len(group.episodes) + number)
        for group, more in zip(groups, jobs, strict=True)
        for number, job in enumerate(more)
    ]
    played = iter(play(numbered))
    return [
        replace(group, episodes=(*group.episodes, *(next(played) for _ in more)))
        for group, more in zip(groups, jobs, strict=True)
    ]


def figures(groups: Sequence[Group]) -> dict[str, float]:
    """`branches`: episodes that branched off a sibling; `shared_turns`: the share of all turns that
    they did not play themselves."""
    episodes = [episode for group in groups for episode in group.episodes]
    turns = sum(len(episode.turns) for episode in episodes)
    return {
        "branches": float(sum(episode.parent is not None for episode in episodes)),
        "shared_turns": sum(episode.stem for episode in episodes) / max(turns, 1),
    }
