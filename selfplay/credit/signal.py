"""Signals of groups: differences between the returns that a credit method compares."""

import numpy as np

from selfplay.author_code import naming
from selfplay.credit import Credit
from selfplay.credit.base import (
    GroupBy,
    alike,
    centred,
    group_advantages,
    group_key,
    learnable_turns,
    own_return,
)
from selfplay.credit.team_return import team_return
from selfplay.types import Group, Status


def has_signal(credit: Credit, group: Group, where: str = "credit") -> bool:
    """Return True if two returns of the group that a credit method compares are different.

    `sampler=dynamic` drops all other groups. A credit method whose `has_signal(group)` returns True
    or False decides itself. Otherwise a method with `team` compares the team's returns of the
    episodes (`team_returns_differ`), and any other method the returns of agents under its
    `group_by`, or within a role if it has none (`returns_differ`).

    Args:
        credit: The credit method.
        group: The group, as it was played.
        where: Config key of the method, for errors.
    Raises:
        ConfigError: In one line that names the method, for an error of an author's code.
    """
    decide = getattr(credit, "has_signal", None)
    if decide is not None:
        with naming(f"{where}: {type(credit).__name__}.has_signal", credit):
            decided = decide(group)
        if decided is not None:
            return bool(decided)
    if getattr(credit, "team", False):
        return team_returns_differ(group)
    return returns_differ(group, getattr(credit, "group_by", "role"))


def returns_differ(group: Group, group_by: GroupBy = "role") -> bool:
    """Return True if two trajectories that are compared with each other got different returns.

    `group_by` is the key of the comparison, see `base.group_key`. A trajectory that is alone under
    its policy and key is not compared.
    """
    advantages = group_advantages(
        learnable_turns([group], own_return), key=group_key(group_by), advantage=centred
    )
    return any(advantages)


def team_returns_differ(group: Group) -> bool:
    """Return True if two episodes that did not fail have different team returns, and one of these
    episodes has a turn to learn from."""
    played = [each for each in group.episodes if each.status is not Status.FAILED]
    learnable = any(turn.trainable for each in played for turn in each.turns)
    return learnable and not alike(np.array([team_return(each) for each in played]))
