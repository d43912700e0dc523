"""Tests of the formatting of numbers, fractions, changes, durations and sparklines."""

import math

from arenas.games.kuhn import Kuhn
from arenas.games.leduc import Leduc
from selfplay.run.declarations import RunMetrics, measured_by
from selfplay.run.formatting import (
    ASCII_BARS,
    as_of,
    change,
    direction,
    duration,
    format_value,
    number,
    sparkline,
)
from selfplay.types import Metric

FRACTION = Metric(unit="fraction", better="higher")


def test_numbers_changes_and_durations_are_formatted() -> None:
    assert [number(x) for x in (0, 3.0, 12.34, 0.1234, 1e-5, 12345.6, math.nan, None)] == [
        "0", "3", "12.3", "0.123", "1.0e-05", "12,346", "-", "-",
    ]  # fmt: skip
    assert (
        format_value(FRACTION, 0.5) == "50.0%"
        and format_value(Metric(unit="reward"), 0.5) == "0.500"
    )
    assert change(Metric(), 1.0, 0.5) == "-0.500" and change(FRACTION, 0.1, 0.2) == "+10.0"
    assert [duration(x) for x in (4, 185, 7620)] == ["4 s", "3 min 05 s", "2 h 07 min"]


def test_a_count_named_like_a_fraction_is_a_number() -> None:
    assert format_value(Metric(unit="count"), 7.298) == "7.30"


def test_an_alarm_is_shown_as_fired_or_not_fired() -> None:
    alarm = Metric(unit="alarm", better="lower")
    assert format_value(alarm, 0.0) == "not fired" and format_value(alarm, 1.0) == "fired"


def test_the_direction_of_a_change_is_the_declared_one() -> None:
    fault = Metric(unit="fraction", better="lower")
    assert [direction(m, "-14.0") for m in (FRACTION, fault, Metric())] == ["down", "up", "same"]
    assert direction(FRACTION, "+0.0") == direction(fault, "-") == "same"


def test_an_older_value_names_its_step() -> None:
    assert as_of("1.5%", 1078, 1200) == "1.5% (step 1,078)"
    assert as_of("1.5%", 1200, 1200) == "1.5%" and as_of("-", 1, 2) == "-"


def test_sparkline_by_hand() -> None:
    assert sparkline([0, 7], 12) == "\u2581\u2588"
    assert sparkline([0, 0, 7, 7], 2) == "\u2581\u2588"
    assert sparkline([3, 3, 3]) == "\u2585" * 3
    assert sparkline([float("nan"), 1.0, 2.0], bars=ASCII_BARS) == "_#"
    assert sparkline([]) == "" and sparkline([1.0], 0) == ""
    assert len(sparkline(list(range(1000)))) == 12


def test_chips_have_their_unit() -> None:
    chips = Metric(unit="chips")
    assert format_value(chips, -1.94) == "-1.94 chips" and format_value(chips, math.nan) == "-"
    assert RunMetrics(arena=measured_by(Kuhn())).of("arena/player_0_payoff").unit == "chips"
    assert RunMetrics(arena=measured_by(Leduc())).of("arena/player_1_payoff").unit == "chips"
