"""Tests of limits of sampling and turns that change with the training step."""

from dataclasses import replace
from typing import Any

import pytest

from selfplay.config import compose
from selfplay.config.schedule import Schedule
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check
from selfplay.plan.workload import limit_of, reads_reference
from selfplay.rollout.agent_spec import scheduled_limits
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.rollout.sampling_settings import SamplingSettings
from selfplay.rollout.schedule import make_scheduled, sampled_at
from selfplay.types import Episode, Status
from tests.helpers.guessing_game import rollout, spec

FALLING = Schedule(steps=(1, 5, 9), values=(1.0, 0.5, 0.9))


def limits(node: dict[str, Any]) -> SamplingSettings:
    """Return the limits of a solver of this config node."""
    return make_scheduled(SamplingSettings, node, where="sampling.solver")


@pytest.mark.parametrize(
    ("step", "linear", "constant"),
    [
        (-3, 1.0, 1.0),
        (0, 1.0, 1.0),
        (1, 1.0, 1.0),
        (2, 0.875, 1.0),
        (4, 0.625, 1.0),
        (5, 0.5, 0.5),
        (7, 0.7, 0.5),
        (9, 0.9, 0.9),
        (100, 0.9, 0.9),
        (None, 0.9, 0.9),
    ],
)
def test_values_between_the_steps(step: int | None, linear: float, constant: float) -> None:
    assert FALLING.at(step) == pytest.approx(linear, abs=1e-15)
    assert replace(FALLING, between="constant").at(step) == constant


def test_between_equal_values_nothing_is_rounded() -> None:
    flat = Schedule(steps=(1, 50), values=(0.1, 0.1))
    assert all(flat.at(step) == 0.1 for step in range(60))


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ({"steps": [1, 2], "values": [1.0]}, "as many steps as values"),
        ({"steps": [], "values": []}, "at least one"),
        ({"steps": [2, 2], "values": [1.0, 0.5]}, "ascend"),
        ({"steps": [5, 1], "values": [1.0, 0.5]}, "ascend"),
        ({"steps": [1, 2], "values": [1.0, "hot"]}, "sampling.solver.temperature"),
        ({"steps": [1, 2], "values": [1.0, 0.5], "between": "spline"}, "between"),
        ({"step": [1, 2], "values": [1.0, 0.5]}, "sampling.solver.temperature"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(schedule: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        limits({"temperature": schedule})


def test_the_entropy_bonus_may_have_a_schedule() -> None:
    def composed(schedule: str) -> dict[str, Any]:
        return compose.load(["+experiment=tiny/kuhn", f"objective.entropy={schedule}"])

    check(composed("{steps: [0, 600], values: [0.3, 0.03]}"))
    with pytest.raises(ConfigError, match=r"objective.*entropy must be a finite number"):
        check(composed("{steps: [0, 600], values: [0.3, inf]}"))
    with pytest.raises(ConfigError, match=r"objective\.entropy"):
        check(composed("{steps: [0, 600], value: [0.3, 0.03]}"))


def test_the_kl_term_may_have_a_schedule() -> None:
    def composed(*weights: str) -> dict[str, Any]:
        return compose.load(
            ["+experiment=tiny/kuhn", *(f"objective.kl={each}" for each in weights)]
        )

    made = composed("{steps: [0, 600], values: [0.4, 0], between: constant}")
    check(made)
    assert reads_reference(made)
    assert not reads_reference(composed("{steps: [0, 600], values: [0, 0]}"))
    assert composed("{steps: [0], values: [0.4]}", "0.1")["objective"]["kl"] == 0.1
    for wrong, problem in (
        ("{steps: [0, 600], values: [0.4, -0.1]}", r"objective.*kl must not be negative"),
        ("{steps: [0, 600], values: [0.4, nan]}", r"objective\.kl\.values\.1: nan"),
        ("{steps: [600, 0], values: [0.4, 0.1]}", r"objective\.kl: the steps .* ascend"),
        ("{steps: [0, 600], values: [0.4]}", r"objective\.kl: .*as many steps as values"),
        ("{step: [0, 600], values: [0.4, 0.1]}", r"objective\.kl\.step: unknown key"),
    ):
        with pytest.raises(ConfigError, match=problem):
            check(composed(wrong))


def test_only_limits_have_schedules_and_lengths_are_whole_numbers() -> None:
    ok = {"steps": [1, 3], "values": [4, 9]}
    with pytest.raises(ConfigError, match=r"sampling\.solver\.stop: .*max_tokens"):
        limits({"stop": ok})
    with pytest.raises(ConfigError, match=r"rollout\.threads: .*max_turns"):
        make_scheduled(RolloutSettings, {"threads": ok}, where="rollout")
    with pytest.raises(ConfigError, match=r"max_tokens\.values: \[4\.0, 9\.5\]"):
        limits({"max_tokens": {**ok, "values": [4, 9.5]}})
    with pytest.raises(ConfigError, match=r"rollout\.max_turns\.values: \[0\.0, 9\.0\]"):
        make_scheduled(RolloutSettings, {"max_turns": {**ok, "values": [0, 9]}}, where="rollout")
    assert limits({"max_tokens": ok}).max_tokens == 9, "outside of training the last value applies"


def recorded(seat_schedules: dict[str, Schedule], *, step: int | None) -> Episode:
    """Return an episode of two guessing players whose seat has schedules."""
    play = rollout()
    seat = replace(play.agent_specs["player"], max_tokens=3, schedules=seat_schedules)
    play.agent_specs["player"] = seat
    run = play.run if step is None else sampled_at(play.run, step)
    (played,) = run([spec(policy_map={"player_1": "old"})])
    return played


def test_requests_have_the_limits_of_the_step() -> None:
    schedules = {
        "max_tokens": Schedule(steps=(1, 3), values=(1, 3)),
        "temperature": Schedule(steps=(1, 3), values=(1.0, 0.5)),
    }
    for step, tokens, temperature in [(1, 1, 1.0), (2, 2, 0.75), (3, 3, 0.5), (None, 3, 0.5)]:
        played = recorded(schedules, step=step)
        own, old = played.turns[:2]
        # `base` says one letter and ends; `old` says two letters if it may.
        assert len(old.completion_ids) == min(tokens, 2)
        assert own.temperature == old.temperature == temperature


def test_episodes_are_truncated_at_the_turns_of_the_step() -> None:
    play = rollout()
    turns = Schedule(steps=(1, 2), values=(2, 4), between="constant")
    play.settings = play.settings.changed(schedules={"max_turns": turns})
    (short,) = sampled_at(play.run, 1)([spec()])
    (whole,) = sampled_at(play.run, 2)([spec()])
    assert (len(short.turns), short.status) == (2, Status.TRUNCATED)
    assert (len(whole.turns), whole.status) == (4, Status.FINISHED)
    schedules = {"max_tokens": Schedule(steps=(1, 3), values=(1, 3))}
    seats = {"player": replace(play.agent_specs["player"], schedules=schedules)}
    assert scheduled_limits(seats, play.settings.schedules, step=2) == {
        "max_turns": 4.0,
        "player/max_tokens": 2.0,
    }


def composed(*overrides: str) -> dict[str, Any]:
    return compose.load(["+experiment=tiny/quickstart", *overrides])


def test_every_value_of_a_schedule_is_validated() -> None:
    check(composed("sampling.default.temperature={steps: [1, 9], values: [1.0, 0.7]}"))
    with pytest.raises(ConfigError, match=r"sampling\.default\.temperature: -1"):
        check(composed("sampling.default.temperature={steps: [1, 5], values: [-1, 0.7]}"))
    with pytest.raises(ConfigError, match="leaves no room for a prompt"):
        # The largest value counts, also if it is not the last one.
        check(
            composed(
                "sampling.default.max_tokens={steps: [1, 5, 9], values: [64, 100000, 64]}",
                "+warmstart.model={positions: 512}",
            )
        )


def test_a_plan_reserves_room_for_the_longest_completion() -> None:
    config = composed("sampling.default.max_tokens={steps: [1, 5], values: [900, 300]}")
    assert limit_of(config, "solver") == 900
