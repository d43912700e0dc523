"""Successes among the episodes of a group: the mean return of the agents is above a threshold.

In a zero-sum game the mean return is always 0, so no episode differs from the others. The first
step of a run then prints a note (`credit.missing_signals.zero_sum`).
"""

from collections.abc import Sequence

from selfplay.credit.team_return import team_return
from selfplay.types import Episode, Group, Status


def succeeded(episode: Episode, threshold: float) -> bool:
    """Return True if the mean return of the episode's agents is above the threshold."""
    return team_return(episode) > threshold


def by_success(group: Group, threshold: float) -> tuple[list[int], list[int], list[int]]:
    """Return the indices of a group's episodes with an error, of its failures and its successes.

    An episode with an error (status failed) is neither a failure nor a success.
    """
    failed, failures, successes = list[int](), list[int](), list[int]()
    for index, episode in enumerate(group.episodes):
        if episode.status is Status.FAILED:
            failed.append(index)
        else:
            (successes if succeeded(episode, threshold) else failures).append(index)
    return failed, failures, successes


def success_fractions(
    played: Sequence[Group], kept: Sequence[Group], threshold: float
) -> dict[str, float]:
    """Return `success_played` and `success_kept`: the fractions of successes among the episodes
    that did not fail, of all groups and of those to learn from."""
    fractions = {}
    for name, groups in (("success_played", played), ("success_kept", kept)):
        episodes = not_failed(groups)
        wins = sum(succeeded(episode, threshold) for episode in episodes)
        fractions[name] = wins / max(len(episodes), 1)
    return fractions


def not_failed(groups: Sequence[Group]) -> list[Episode]:
    """Return the episodes of the groups that did not fail."""
    episodes = (episode for group in groups for episode in group.episodes)
    return [episode for episode in episodes if episode.status is not Status.FAILED]
