"""Tests of learning progress: turns wait for a second measurement and are paid for the change."""

import json
from typing import Any

import pytest

from selfplay.credit.by_role import ByRole
from selfplay.credit.grpo import GRPO
from selfplay.credit.learning_progress import LearningProgress
from selfplay.types import Episode, Sample, Status, Task
from tests.helpers.builders import episode, group, turn


def designed(name: str, score: float, **fields: Any) -> Episode:
    """Return an episode in which a designer makes a task that is played at once."""
    author = turn("designer_0", text=name)
    created = (Task(id=name),)
    return episode(author, turn("player_0"), metrics={"score": score}, created=created, **fields)


def refused(name: str, pay: float) -> Episode:
    return episode(turn("designer_0", pay, text=name))


def played(name: str, score: float) -> Episode:
    return episode(turn("player_0", 5.0), task=Task(id=name), metrics={"score": score})


def method(**settings: Any) -> LearningProgress:
    return LearningProgress(**settings)


def assigned(credit: Any, *episodes: Episode) -> dict[str, float]:
    """Return the advantages of the designer's turns by their text."""
    found: list[Sample] = ByRole(methods={"designer": credit, "default": GRPO()}).assign(
        [group(each, name=str(place)) for place, each in enumerate(episodes)]
    )
    return {s.turn.text: float(s.advantage) for s in found if s.turn.role == "designer"}  # type: ignore[arg-type]


def test_the_pay_is_the_change_of_the_score() -> None:
    credit = method()
    assert assigned(credit, designed("a", 0.2), designed("b", 0.6), designed("c", 0.5)) == {}
    assert credit.metrics() == {"paid": 0, "waiting": 3, "dropped": 0, "progress": 0}
    # a rises by 0.5 (two plays, mean 0.7), b falls by 0.1: mean 0.2, standard deviation 0.3 sqrt 2
    paid = assigned(credit, played("a", 0.6), played("a", 0.8), played("b", 0.5), played("x", 1))
    assert paid == pytest.approx({"a": 0.5**0.5, "b": -(0.5**0.5)}, abs=1e-4)
    assert credit.metrics() == pytest.approx(
        {"paid": 2, "waiting": 1, "dropped": 0, "progress": 0.2}
    )
    assert assigned(credit, played("a", 0.9)) == {}  # paid once


def test_all_turns_of_the_author_wait_with_its_tool_calls() -> None:
    credit = method()
    call = turn("designer_0", text="call", final=False)
    made = (Task(id="a"),)
    author = episode(call, turn("designer_0", text="a"), metrics={"score": 0.2}, created=made)
    assert assigned(credit, author, designed("b", 0.6)) == {}
    assert credit.metrics()["waiting"] == 3
    credit.load_state_dict(json.loads(json.dumps(credit.state_dict())))
    paid = assigned(credit, played("a", 0.7), played("b", 0.5))
    assert paid.keys() == {"call", "a", "b"} and paid["call"] == paid["a"] > 0 > paid["b"]


def test_a_turn_that_created_nothing_is_paid_at_once() -> None:
    credit = method()
    assigned(credit, designed("a", 0.0))
    paid = assigned(credit, played("a", 1.0), refused("bad", -1.0))
    assert paid == pytest.approx({"a": 0.5**0.5, "bad": -(0.5**0.5)}, abs=1e-4)


def test_a_turn_waits_until_its_policy_learns() -> None:
    def learns(policy: str, step: int) -> bool:
        return policy == "base" and step not in (2, 3)

    credit = method(patience=2, learns=learns)
    assert assigned(credit, designed("a", 0.2), designed("b", 0.6)) == {}
    assert assigned(credit, played("a", 0.7), played("b", 0.5)) == {}
    assert credit.metrics() == {"paid": 0, "waiting": 2, "dropped": 0, "progress": 0}
    credit.load_state_dict(json.loads(json.dumps(credit.state_dict())))
    assert assigned(credit, played("a", 0.0)) == {}  # the change is measured once
    assert credit.metrics()["dropped"] == 0
    paid = assigned(credit)
    assert paid == pytest.approx({"a": 0.5**0.5, "b": -(0.5**0.5)}, abs=1e-4)
    assert credit.metrics() == pytest.approx(
        {"paid": 2, "waiting": 0, "dropped": 0, "progress": 0.2}
    )
    assert assigned(credit) == {}


def test_a_state_of_an_older_version_has_no_measured_turns() -> None:
    credit = method()
    assigned(credit, designed("a", 0.2))
    state = credit.state_dict()
    assert state.pop("measured") == []
    credit.load_state_dict(state)
    assert credit.metrics()["waiting"] == 1


def test_absolute_progress_pays_for_forgetting_too() -> None:
    credit = method(absolute=True)
    assigned(credit, designed("up", 0.5), designed("down", 0.5))
    paid = assigned(credit, played("up", 0.75), played("down", 0.25))
    assert paid == {"up": 0.0, "down": 0.0}
    assert credit.metrics()["progress"] == 0.25


def test_delay_and_patience() -> None:
    credit = method(delay=2, patience=3)
    assigned(credit, designed("a", 0.1), designed("b", 0.1))
    assert assigned(credit, played("a", 1.0), refused("x", 0), refused("y", 1)).keys() == {"x", "y"}
    assert assigned(credit, played("a", 0.4)) == {"a": 0.0}  # alone: nothing to compare with
    assert credit.metrics()["progress"] == pytest.approx(0.3)
    assert assigned(credit, designed("c", 0.1)) == {} and credit.metrics()["dropped"] == 1
    assert assigned(credit, played("b", 1.0)) == {}


def test_an_episode_of_the_same_step_is_no_second_measurement() -> None:
    credit = method()
    assert assigned(credit, designed("a", 0.2), played("a", 0.9)) == {}
    assert assigned(credit, played("a", 0.9)) == {"a": 0.0}
    assert credit.metrics()["progress"] == pytest.approx(0.7)


def test_a_task_that_is_made_again_while_it_waits_keeps_its_first_measurement() -> None:
    credit = method()
    for each in (designed("a", 0.2), designed("a", 0.8), played("a", 0.6)):
        assigned(credit, each)
    assert credit.metrics()["progress"] == pytest.approx(0.4)


def test_an_episode_that_makes_a_task_does_not_measure_its_own_task() -> None:
    credit = method()
    assigned(credit, designed("a", 0.2))
    assigned(credit, designed("b", 0.9, task=Task(id="a")))
    assert credit.metrics() == {"paid": 0, "waiting": 2, "dropped": 0, "progress": 0}


def test_failed_episodes_and_missing_metrics_are_ignored() -> None:
    credit = method()
    failed = designed("f", 0.2, status=Status.FAILED)
    assert assigned(credit, failed, designed("a", 0.2)) == {}
    nothing = episode(turn("player_0"), task=Task(id="a"))
    assert assigned(credit, nothing) == {} and credit.metrics()["waiting"] == 1
    unmeasured = episode(turn("designer_0", text="b"), created=(Task(id="b"),))
    assert assigned(credit, unmeasured) == {} and credit.metrics()["waiting"] == 1


def test_the_players_turns_are_credited_by_another_method() -> None:
    found = ByRole(methods={"designer": method(), "default": GRPO()}).assign(
        [group(played("a", 0.1), episode(turn("player_0", 1.0), task=Task(id="a")))]
    )
    assert [s.turn.role for s in found] == ["player", "player"] and found[0].advantage != 0


def test_waiting_turns_survive_a_checkpoint() -> None:
    first, second = method(), method()
    assigned(first, designed("a", 0.2), designed("b", 0.2))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for credit in (first, second):
        assert assigned(credit, played("a", 0.4), played("b", 0.3)).keys() == {"a", "b"}
    assert first.metrics() == second.metrics()
    with pytest.raises(ValueError, match="LearningProgress keeps turns"):
        first.load_state_dict({"kept": {}})


def test_settings_are_checked() -> None:
    for settings in ({"delay": 0}, {"delay": 3, "patience": 2}):
        with pytest.raises(ValueError, match="1 <= delay <= patience"):
            method(**settings)
