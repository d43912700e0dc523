"""Tests of the rules of the collapse monitor, on metrics made by hand."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from selfplay.config.compose import choices, load
from selfplay.config.instantiate import build
from selfplay.errors import ConfigError
from selfplay.experiment.collapse import CollapseMonitor
from selfplay.experiment.collapse.responses import Warn
from selfplay.experiment.experiment import check

FALLS = {"metric": "a", "direction": "decrease", "threshold": 0.5, "window": 1, "patience": 1}


def make_monitor(**rules: Mapping[str, Any] | None) -> CollapseMonitor:
    return CollapseMonitor(response=Warn(), rules=rules)


def fired(
    monitor: CollapseMonitor, values: Sequence[float], name: str = "a", first: int = 1
) -> list[int]:
    """Return the steps at which the only rule fires, given one value per step."""
    steps = []
    for step, value in enumerate(values, first):
        (fires,) = monitor.observe(step, {name: value}).values()
        if fires:
            steps.append(step)
    return steps


@pytest.mark.parametrize(
    ("settings", "values", "steps"),
    [
        # relative to the best value: 0.3 is more than 0.5 below 0.9, and 0.4 is not
        ({}, [0.2, 0.9, 0.5, 0.3, 0.4, 0.3], [4, 6]),
        ({"direction": "increase"}, [0.9, 0.2, 0.6, 0.8, 0.7], [4]),
        # relative to the first value: later values do not count
        ({"reference": "first"}, [0.2, 0.9, 0.3, -0.2, -0.4], [5]),
        ({"reference": 1.0}, [0.4, 0.6, 0.5], [1]),
        # by a fraction: half of 8 is 4, half of -8 is 4 too
        ({"relative": True}, [8.0, 4.0, 3.9], [3]),
        ({"relative": True, "reference": "first"}, [-8.0, -12.0, -12.1], [3]),
        # the noise of one step has no effect with patience, nor with a mean of three steps
        ({"patience": 2}, [1.0, 0.0, 1.0, 0.0, 0.0, 0.0], [5, 6]),
        ({"window": 3}, [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0], [9, 10]),
        # a value that is not a number is no observation
        ({}, [1.0, math.nan, 0.0, math.inf, 0.9, 0.0], [3, 4, 6]),
    ],
)
def test_a_rule_fires_at_the_expected_steps(
    settings: dict[str, Any], values: list[float], steps: list[int]
) -> None:
    assert fired(make_monitor(mine={**FALLS, **settings}), values) == steps


def test_self_play_that_diverges_from_play_against_anchors() -> None:
    rule = {**FALLS, "metric": "self", "minus": "anchor", "direction": "increase", "threshold": 0.2}
    monitor = make_monitor(diverging=rule)
    results = []
    for step in range(1, 9):
        metrics = {"self": 0.1 * step}
        if (
            step % 2 == 0
        ):  # the evaluation runs at every other step, and only there a difference exists
            metrics["anchor"] = {2: 0.2, 4: 0.4, 6: 0.3, 8: 0.1}[step]
        results.append(monitor.observe(step, metrics).get("collapse/diverging"))
    assert results == [None, 0, 0, 0, 0, 1, 1, 1]
    (alarm,) = monitor.alarms()
    assert "self - anchor rose to 0.7, away from its best, 0; it began by step 6" in alarm.text


def test_each_matching_metric_is_watched_separately() -> None:
    monitor = make_monitor(valid={**FALLS, "metric": "role/*/valid"})
    monitor.observe(1, {"role/a/valid": 1.0, "role/b/valid": 0.4, "role/a/reward": 1.0})
    assert monitor.observe(2, {"role/a/valid": 1.0, "role/b/valid": 0.0}) == {"collapse/valid": 0}
    assert monitor.observe(3, {"role/a/valid": 0.1, "role/b/valid": 0.0}) == {"collapse/valid": 1}
    assert [alarm.metric for alarm in monitor.alarms()] == ["role/a/valid"]


def test_an_alarm_is_new_once_and_knows_when_it_began() -> None:
    monitor = make_monitor(mine={**FALLS, "window": 3, "patience": 2})
    new = []
    for step, value in enumerate([1, 1, 1, 1, 0, 0, 0, 0], 1):
        monitor.observe(step, {"a": value})
        new.append([alarm.new for alarm in monitor.alarms()])
    # The mean of three steps is below 0.5 from step 6 on; that of step 6 begins with step 4.
    assert new == [[]] * 6 + [[True], [False]]
    assert monitor.alarms()[0].begun == 4


def test_an_alarm_is_not_new_in_a_step_without_a_new_value() -> None:
    monitor = make_monitor(mine=FALLS)
    new = []
    for step, metrics in enumerate([{"a": 1.0}, {"a": 0.0}, {}, {}, {"a": 0.0}], 1):
        monitor.observe(step, metrics)
        new.append([alarm.new for alarm in monitor.alarms()])
    assert new == [[], [True], [False], [False], [False]]


def test_a_metric_that_is_no_longer_observed_fires_no_more_and_keeps_no_checkpoint() -> None:
    class RollsBack(Warn):
        rolls_back = True

    monitor = CollapseMonitor(response=RollsBack(), rules={"mine": {**FALLS, "metric": "role/*"}})
    results = {}
    for step in range(1, 30):
        ended = {"role/a": 1.0 if step < 10 else 0.0} if step <= 10 else {}
        (results[step],) = monitor.observe(step, {**ended, "role/b": 1.0}).values()
    assert [step for step, fires in results.items() if fires] == [10, 11, 12]
    assert monitor.spare() == 28 and not monitor.alarms()
    monitor.observe(30, {"role/a": 0.0, "role/b": 1.0})  # a later phase observes it again
    assert [alarm.metric for alarm in monitor.alarms()] == ["role/a"]


def test_a_missing_metric_counts_as_the_absent_value() -> None:
    rule = {**FALLS, "metric": "a/*", "direction": "increase", "reference": 0.0, "patience": 2}
    values = [None, 0.9, None, 0.9, 0.9, None]
    for absent, expected in ((None, [4, 5, 6]), (0.0, [5]), (0.8, [3, 4, 5, 6])):
        monitor, results = make_monitor(mine={**rule, "absent": absent}), []
        for step, value in enumerate(values, 1):
            results.append(monitor.observe(step, {} if value is None else {"a/b": value}))
        assert results[0] == {}, "the metric was not observed before"
        assert [n for n, each in enumerate(results, 1) if each.get("collapse/mine")] == expected
    gap = make_monitor(mine={**FALLS, "minus": "b", "absent": 0.0})
    assert gap.observe(1, {"a": 1.0, "b": 1.0}) == gap.observe(2, {"b": 0.1})
    assert gap.observe(3, {"b": 1.0}) == gap.observe(4, {}) == {"collapse/mine": 1}


def test_a_removed_rule_and_a_rule_on_an_unknown_metric() -> None:
    monitor = make_monitor(mine=FALLS, gap={**FALLS, "metric": "b", "minus": "rewrd"}, off=None)
    assert set(monitor.rules) == {"mine", "gap"}
    metrics = {"a": 1.0, "b": 1.0, "reward": 0.5}
    assert monitor.observe(1, metrics) == {"collapse/mine": 0}
    (line,) = monitor.unseen(metrics)
    assert line == "collapse.rules.gap: no metric 'rewrd' so far; did you mean 'reward'?"


def test_the_state_of_a_monitor_survives_a_checkpoint() -> None:
    values = [1.0, 0.9, 0.8, 0.2, 0.1, 0.1, 0.1]
    settings = {**FALLS, "window": 2, "patience": 2, "reference": "first"}
    whole, first = make_monitor(mine=settings), make_monitor(mine=settings)
    expected = fired(whole, values)
    before = fired(first, values[:4])
    second = make_monitor(mine=settings)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + fired(second, values[4:], first=5) == expected == [6, 7]
    assert second.state_dict() == whole.state_dict()
    without = make_monitor()
    without.load_state_dict(whole.state_dict())
    assert not without.alarms()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"directon": "decrease"}, r"collapse\.rules\.mine\.directon: unknown key; did you mean"),
        ({"direction": "down"}, r"collapse\.rules\.mine\.direction: 'down' does not fit"),
        ({"window": 0}, r"collapse\.rules\.mine: window and patience must be at least 1"),
        ({"absent": math.nan}, r"collapse\.rules\.mine: absent must be a number or null"),
        ({"threshold": -1}, r"collapse\.rules\.mine: threshold must be a number of at least 0"),
        ({"reference": "last"}, r"collapse\.rules\.mine\.reference"),
        ({"metric": "a/*", "minus": "b"}, "needs the full name of its metric, without"),
    ],
)
def test_an_invalid_rule_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_monitor(mine={**FALLS, **settings})


@pytest.mark.parametrize("name", choices("collapse"))
def test_every_shipped_monitor_can_be_built(name: str) -> None:
    monitor = build(load([f"collapse={name}"])["collapse"], where="collapse")
    assert isinstance(monitor, CollapseMonitor) and bool(monitor.rules) == (name != "none")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("collapse.response.times=0", "times must be at least 1"),
        (
            "collapse.rules.entropy.threshold=-1",
            r"collapse\.rules\.entropy: threshold must be a number",
        ),
        ("+collapse.rules.entropy.wait=1", r"collapse\.rules\.entropy\.wait: unknown key"),
    ],
)
def test_an_invalid_monitor_is_refused_by_a_check(change: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check(load(["+experiment=tiny/kuhn", "collapse=roll_back", change]))


def test_the_shipped_rules_stay_silent_where_learning_goes_well() -> None:
    """Answers of three times the length and a tenth of the surprisal are no collapse."""
    node = load(["collapse=warn"])["collapse"]
    monitor = CollapseMonitor(response=Warn(), rules=node["rules"])
    for step in range(1, 60):
        gone = step / 60
        metrics = {
            "policy/base/surprisal": 0.8 - 0.72 * gone,
            "role/solver/completion_tokens": 20 + 40 * gone,
            "role/solver/valid": 0.9 + (-1) ** step * 0.08,
            "role/proposer/verdict/duplicate": 0.1 + 0.1 * gone,
            "arena/illegal_fraction": 0.1,
            "arena/illegal": 0.1 * step,  # a count, which grows with the length of games
        }
        assert not any(monitor.observe(step, metrics).values())


def test_duplicates_now_and_then_are_no_collapse() -> None:
    """A step without duplicates has no metric of them."""
    monitor = CollapseMonitor(response=Warn(), rules=load(["collapse=warn"])["collapse"]["rules"])
    results = []
    for step in range(1, 60):
        now = {"role/solver/verdict/duplicate": 0.5} if step % 5 == 0 or step > 50 else {}
        results.append(monitor.observe(step, now).get("collapse/duplicates", 0.0))
    # From step 50 on all steps have some. The mean of five steps is above 0.4 from step 54 on;
    # step 56 is the third such step.
    assert [step for step, fires in enumerate(results, 1) if fires] == [56, 57, 58, 59]


def test_each_shipped_rule_fires_at_its_kind_of_collapse() -> None:
    node = load(["collapse=warn"])["collapse"]
    healthy = {
        "policy/base/surprisal": 0.8,
        "role/solver/completion_tokens": 60.0,
        "role/solver/valid": 0.95,
        "role/solver/verdict/duplicate": 0.0,
        "arena/illegal_fraction": 0.02,
    }
    sick = dict(zip(healthy, (0.0, 5.0, 0.5, 0.9, 0.6), strict=True))
    for metric, value in sick.items():
        monitor = CollapseMonitor(response=Warn(), rules=node["rules"])
        for step in range(1, 30):
            monitor.observe(step, healthy if step < 15 else {**healthy, metric: value})
        assert [alarm.metric for alarm in monitor.alarms()] == [metric]
