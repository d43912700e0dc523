"""Formatting of metrics, durations and names as text for the terminal and the pages."""

import math
from collections.abc import Sequence
from itertools import pairwise

from selfplay.types import Metric

BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
"""Bars of a sparkline, low to high."""
ASCII_BARS = "_.-=+*%#"
"""The bars for a terminal without Unicode, low to high."""


def number(value: float | None) -> str:
    """Format a number; "-" if there is no finite value.

    From 100 on it is rounded to a whole number with commas; a smaller number has about three
    significant digits.
    """
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if size == 0 or (value == int(value) and size < 1000):
        return str(int(value))
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.001 else f"{value:.1e}"


def format_value(metric: Metric, value: float | None) -> str:
    """Format a metric's value.

    A fraction is shown as per cent, chips with their unit, an alarm in words, others as a number.
    """
    if value is None or not math.isfinite(value):
        return "-"
    if metric.unit == "alarm":
        return "fired" if value else "not fired"
    if metric.unit == "chips":
        return f"{number(value)} chips"
    return percent(value) if metric.unit == "fraction" else number(value)


def percent(fraction: float) -> str:
    """Format a finite fraction as per cent, such as "8.3%"."""
    return f"{100 * fraction:.1f}%"


def change(metric: Metric, before: float | None, after: float | None) -> str:
    """Format the signed difference of two values; for fractions in percentage points."""
    if before is None or after is None or not math.isfinite(after - before):
        return "-"
    difference = after - before
    if metric.unit == "fraction":
        return f"{100 * difference:+.1f}"
    return ("+" if difference >= 0 else "") + number(difference)


def direction(metric: Metric, difference: str) -> str:
    """Return "up" if a `change` is an improvement, "down" if it is the opposite, else "same".

    It is "same" if the change rounds to 0 or the metric has no direction.
    """
    if metric.better == "neither" or not any(digit in "123456789" for digit in difference):
        return "same"
    return "up" if (difference[0] != "-") == (metric.better == "higher") else "down"


def counted(number: int, word: str) -> str:
    """Return a number of things, such as "1 step" or "2,000 steps"."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def as_of(text: str, step: int, newest: int) -> str:
    """Return a value's text, with its step if that is not the newest step."""
    return text if step == newest or text == "-" else f"{text} (step {step:,})"


def duration(seconds: float) -> str:
    """Format seconds as a duration, such as "42 s", "3 min 05 s" or "2 h 07 min"."""
    if not math.isfinite(seconds):
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def time_text(seconds: float) -> str:
    """Format seconds as a duration, below 100 s with three significant digits, as in "0.052 s"."""
    return duration(seconds) if seconds >= 100 else f"{number(seconds)} s"


def words(name: str) -> str:
    """Return a key or a name of a config with spaces in place of `_` and commas in place of `/`."""
    return name.replace("_", " ").replace("/", ", ")


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text, each column as wide as its widest cell.

    A line break in a cell is shown as `\\n`.
    """
    rows = [["\\n".join(text.splitlines()) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def sparkline(values: Sequence[float], width: int = 12, *, bars: str = BARS) -> str:
    """Draw values as at most `width` bars, the oldest first; neighbours are averaged if needed.

    Values that are not finite are left out. The lowest bar is the smallest mean, the highest bar
    the largest.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    count = min(width, len(finite))
    edges = [round(index * len(finite) / count) for index in range(count + 1)]
    means = [sum(finite[left:right]) / (right - left) for left, right in pairwise(edges)]
    low, high = min(means), max(means)
    if high - low <= 1e-12 * max(1.0, abs(high)):
        return bars[len(bars) // 2] * count
    top = len(bars) - 1
    return "".join(bars[round((mean - low) / (high - low) * top)] for mean in means)
