"""Figures: how numbers, shares, changes, spans of time and sparklines read."""

import math

from selfplay.figures import ASCII_BARS, change, duration, figure, is_share, number, sparkline


def test_figures_read_well() -> None:
    assert [number(x) for x in (0, 3.0, 12.34, 0.1234, 1e-5, 12345.6, math.nan, None)] == [
        "0", "3", "12.3", "0.123", "1.0e-05", "12,346", "-", "-",
    ]  # fmt: skip
    assert figure("arena/deduction/solve_rate", 0.5) == "50.0%" and figure("reward", 0.5) == "0.500"
    assert is_share("role/solver/verdict/wrong") and not is_share("role/solver/reward/induction")
    assert change("loss", 1.0, 0.5) == "-0.500" and change("accuracy", 0.1, 0.2) == "+10.0"
    assert [duration(x) for x in (4, 185, 7620)] == ["4 s", "3 min 05 s", "2 h 07 min"]


def test_sparkline_by_hand() -> None:
    assert sparkline([0, 7], 12) == "\u2581\u2588"
    assert sparkline([0, 0, 7, 7], 2) == "\u2581\u2588"
    assert sparkline([3, 3, 3]) == "\u2585" * 3
    assert sparkline([float("nan"), 1.0, 2.0], bars=ASCII_BARS) == "_#"
    assert sparkline([]) == "" and sparkline([1.0], 0) == ""
    assert len(sparkline(list(range(1000)))) == 12
