"""Checks of the samples that a credit method returns, and of the errors that it raises."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from selfplay.credit.assigned import assigned, by_turn, measured, saved
from selfplay.credit.base import (
    GroupRelative,
    StatelessCredit,
    group_relative,
    learnable_turns,
    own_return,
    samples,
)
from selfplay.credit.by_role import ByRole
from selfplay.errors import ConfigError
from selfplay.types import Group, Sample
from tests.helpers.builders import episode, group, turn

GROUPS = [group(episode(turn("player_0", 1.0)), episode(turn("player_0", 0.0)))]


class Given(StatelessCredit):
    """A credit method that returns the result of a function of the turns."""

    def __init__(self, make: Callable[[list[Any]], Any]) -> None:
        self.make = make

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        result: list[Sample] = self.make(
            [each.turn for each in learnable_turns(groups, own_return)]
        )
        return result


class Short(GroupRelative):
    """A credit method that returns fewer advantages than there are values."""

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
        (
            Given(lambda turns: [1.0]),
            "credit: Given.assign returned a list with float, not of Sample",
        ),
        (Given(lambda turns: turns[9]), r"raised IndexError: .*test_assigned\.py, line \d+\)"),
        (all_with(float("nan")), "gave player_0 the advantage nan; an advantage is a finite"),
        (all_with((float("inf"),) * 99), "gave player_0 the advantage inf"),
        (all_with("high"), "gave player_0 the advantage 'high'"),
        (
            all_with((1.0,) * 99),
            r"Given\.assign gave player_0 99 advantages for \d+ completion tokens; an advantage is",
        ),
        (Short(), "Short.assign raised ValueError: advantage returned 1 numbers for 2 returns"),
    ],
)
def test_a_fault_is_one_line_that_names_the_method(credit: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        assigned(credit, GROUPS)


def test_a_fault_of_a_method_by_role_names_its_own_class() -> None:
    by_role = ByRole(methods={"player": Given(lambda turns: turns[9])})
    words = r"^credit\.methods\.player: Given\.assign raised IndexError: .*test_assigned\.py, line"
    with pytest.raises(ConfigError, match=words):
        assigned(by_role, GROUPS)
    with pytest.raises(ConfigError, match=r"^credit\.methods\.player: Given\.assign gave player_0"):
        assigned(ByRole(methods={"player": all_with(float("nan"))}), GROUPS)
    wrong = ByRole(methods={"player": Wrong(metrics={"x": "high"})})
    with pytest.raises(ConfigError, match=r"^credit\.methods\.player: Wrong\.metrics gave 'x'"):
        measured(wrong)


class Wrong(StatelessCredit):
    """A credit method that returns the given metrics and the given state."""

    def __init__(self, *, metrics: Any = None, state: Any = None) -> None:
        self.shown, self.state = metrics, state

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        return []

    def metrics(self) -> Any:
        return self.shown

    def state_dict(self) -> Any:
        return self.state


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ({"x": "high"}, "credit: Wrong.metrics gave 'x' the value 'high'; a metric is a number"),
        ({"x": None}, "gave 'x' the value None"),
        ({1: 1.0}, "gave 1 the value 1.0"),
        ([1.0], "credit: Wrong.metrics returned list, not a mapping of numbers"),
    ],
)
def test_metrics_are_numbers(shown: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        measured(Wrong(metrics=shown))


def test_numeric_metrics_are_passed_on_as_json_numbers() -> None:
    found = measured(Wrong(metrics={"a": 1, "b": np.float32(0.5)}))
    assert json.dumps(found) == '{"a": 1, "b": 0.5}'


def test_a_state_is_plain_data() -> None:
    assert saved(Wrong(state={"mean": [1.0, None]})) == {"mean": [1.0, None]}
    words = r"credit: Wrong.state_dict has 'key', which a checkpoint cannot hold .*plain data only"
    with pytest.raises(ConfigError, match=words):
        saved(Wrong(state={"key": len}))
    with pytest.raises(ConfigError, match=r"Wrong\.state_dict returned NoneType, not a dictionary"):
        saved(Wrong())
    by_role = ByRole(methods={"solver": Wrong(state={"key": len})})
    with pytest.raises(ConfigError, match=r"credit.methods.solver: Wrong.state_dict has 'key'"):
        saved(by_role)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({1: 0.5}, "has the key 1; keys must be texts: a checkpoint would give '1' back for 1"),
        ({"means": {1: 0.5}}, "has the key 1 in 'means'; keys must be texts: a checkpoint would"),
        ({"means": [0, {"a": {2.5: 1}}]}, "has the key 2.5 in 'means'; keys must be texts"),
        ({"means": ({None: 1},)}, "has the key None in 'means'; keys must be texts: a checkpoint"),
        ({True: 1}, "has the key True; keys must be texts: a checkpoint would give 'true' back"),
    ],
)
def test_the_keys_of_a_state_are_texts(state: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^credit: Wrong\.state_dict {re.escape(words)}"):
        saved(Wrong(state=state))
    assert json.loads(json.dumps(state)) != state  # JSON would change the state silently


def test_a_state_with_keys_that_are_texts_is_passed_on() -> None:
    state = {"means": {"1": [0.5, {"a": None}], "x": (1, 2)}}
    assert saved(Wrong(state=state)) == state


def test_a_method_of_a_role_that_lacks_members_is_named() -> None:
    class Plain:
        """A credit method that has `assign` alone."""

        def assign(self, groups: Sequence[Group]) -> list[Sample]:
            return []

    plain: Any = Plain()
    words = r"^credit\.methods\.solver: Plain is not a valid credit, because it lacks metrics, mod"
    with pytest.raises(ConfigError, match=words):
        ByRole(methods={"solver": plain})


def test_the_number_of_advantages_must_equal_the_number_of_turns() -> None:
    turns = learnable_turns(GROUPS, own_return)
    with pytest.raises(ValueError, match="2 turns, 1 advantages"):
        samples(turns, [1.0])


class OldSignature(StatelessCredit):
    """A credit method whose `assign` takes no groups."""

    def assign(self) -> list[Sample]:
        return []


def test_a_method_with_another_signature_is_named() -> None:
    wrong: Any = OldSignature()
    with pytest.raises(ConfigError, match=r"credit: OldSignature\.assign raised TypeError"):
        assigned(wrong, GROUPS)


def test_a_copy_of_a_turn_counts_as_the_turn_of_its_episode() -> None:
    """Check a credit method that adds `info` to turns for an objective."""
    siblings = group(
        episode(turn("a_0", 1.0), turn("a_0", 2.0, prompt_ids=(7, 8))), episode(turn("a_0"))
    )
    turns = [each for played in siblings.episodes for each in played.turns]
    made = samples(learnable_turns([siblings], own_return), [0.5, -1.0, 2.0])
    copies = [replace(each, turn=replace(each.turn, info={"hint": "x"})) for each in made]
    for given in (made, copies):
        assert [by_turn(given, [siblings]).get(id(each)) for each in turns] == [0.5, -1.0, 2.0]
    equal = group(episode(turn("a_0", 1.0), turn("a_0", 2.0)))
    twice = [replace(each, group=equal.id) for each in copies[:1] * 2]
    values = by_turn([replace(twice[0], advantage=3.0), twice[1]], [equal])
    assert [values[id(each)] for each in equal.episodes[0].turns] == [3.0, 0.5]
    other = [replace(each, group="of an earlier step") for each in copies]
    assert not {id(each) for each in turns} & {*by_turn(other, [siblings])}
    moved = [replace(each, turn=replace(each.turn, completion_ids=(1, 2, 3))) for each in copies]
    assert not {id(each) for each in turns} & {*by_turn(moved, [siblings])}
