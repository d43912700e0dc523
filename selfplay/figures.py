"""How figures read in the terminal and in the report."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
"""Bars of a sparkline, low to high."""
ASCII_BARS = "_.-=+*%#"
"""The same for a terminal that knows ASCII alone."""

_SHARE = re.compile(
    r"(^|_)(accuracy|rate|share|fraction|valid|worked|solved|won|match|agreement|f1|distinct_created)$"
    r"|^valid_|^pass_at_"
)
_FAULT = re.compile(r"(^|_)(illegal|invalid|wrong|failed|error|timeout|lost|truncated)(_|$)")


def is_share(key: str) -> bool:
    """Whether the metric `key` is a share between 0 and 1: its last segments tell."""
    rest, _, last = key.rpartition("/")
    if (rest.partition("/")[0], last) == ("curriculum", "solved"):  # tasks of a ladder
        return False
    named = rest.rpartition("/")[2] in ("verdict", "invalid")
    return named or _SHARE.search(last) is not None


def is_fault(key: str) -> bool:
    """Whether the metric `key` counts what should not happen, so that less of it is better."""
    return any(_FAULT.search(part) for part in key.split("/")[-2:])


def number(value: float | None) -> str:
    """About three significant digits; "-" where there is no finite value."""
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


def figure(key: str, value: float | None) -> str:
    """The value of the metric `key`: a share as per cent, anything else as a number."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{100 * value:.1f}%" if is_share(key) else number(value)


def change(key: str, before: float | None, after: float | None) -> str:
    """The signed difference; of shares, in percentage points."""
    if before is None or after is None or not math.isfinite(after - before):
        return "-"
    difference = after - before
    if is_share(key):
        return f"{100 * difference:+.1f}"
    return ("+" if difference >= 0 else "") + number(difference)


def duration(seconds: float) -> str:
    """A span of time, e.g. "42 s", "3 min 05 s", "2 h 07 min"."""
    if not math.isfinite(seconds):
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def words(name: str) -> str:
    """A name from a key or a config, as words."""
    return name.replace("_", " ").replace("/", ", ")


def sparkline(values: Sequence[float], width: int = 12, *, bars: str = BARS) -> str:
    """The values as at most `width` small bars, the oldest first; older ones are averaged together.

    A value that is not finite is left out; bars span the range of what is shown.
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
