"""Checks of the samples that a credit method returns, and of the errors that it raises."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from selfplay.credit.assigned import assigned
from selfplay.credit.base import (
    GroupRelative,
    StatelessCredit,
    group_relative,
    learnable_turns,
    own_return,
)
from selfplay.errors import ConfigError
from selfplay.types import Group, Sample
from tests.helpers.builders import episode, group, turn

GROUPS = [group(episode(turn("player_0", 1.0)), episode(turn("player_0", 0.0)))]


class Given(StatelessCredit):
    """Returns what a function makes of the turns."""

    def __init__(self, make: Callable[[list[Any]], Any]) -> None:
        self.make = make

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        result: list[Sample] = self.make(
            [each.turn for each in learnable_turns(groups, own_return)]
        )
        return result


class Short(GroupRelative):
    """Gives fewer advantages than there are values."""

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        return group_relative(
            learnable_turns(groups, own_return), key=self.among, advantage=lambda v: v[:1]
        )


def all_with(advantage: Any) -> Given:
    return Given(lambda turns: [Sample(turn=each, advantage=advantage) for each in turns])


def test_samples_are_passed_on() -> None:
    assert [each.advantage for each in assigned(all_with(0.5), GROUPS)] == [0.5, 0.5]
    count = len(GROUPS[0].episodes[0].turns[0].completion_ids)
    assert len(assigned(all_with((1.0,) * count), GROUPS)) == 2


@pytest.mark.parametrize(
    ("credit", "words"),
    [
        (Given(lambda turns: None), "credit: Given.assign returned NoneType, not a list of Sample"),
        (Given(lambda turns: [1.0]), "credit: Given.assign returned list, not a list of Sample"),
        (Given(lambda turns: turns[9]), r"raised IndexError: .*test_assigned\.py, line \d+\)"),
        (all_with(float("nan")), "gave player_0 the advantage nan; an advantage is a finite"),
        (all_with((float("inf"),) * 99), "gave player_0 the advantage inf"),
        (all_with("high"), "gave player_0 the advantage 'high'"),
        (Short(), "Short.assign raised ValueError: advantage returned 1 numbers for 2 returns"),
    ],
)
def test_a_fault_is_one_line_that_names_the_method(credit: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        assigned(credit, GROUPS)
