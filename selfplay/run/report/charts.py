"""Charts: curves grouped by the prefix of their metric, drawn as SVG for inlining in a page.

The SVG has no colours, styles or scripts of its own: every stroke and fill is a class of the page's
style sheet, for light and dark mode and for a strict Content-Security-Policy. Long curves are
smoothed and downsampled.
"""

import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from selfplay.run.declarations import RunMetrics
from selfplay.run.formatting import as_of, format_value, words
from selfplay.run.report.percent_axis import percent_axis
from selfplay.run.report.repeated_metrics import finite_columns, repeated

MOST_POINTS = 800
"""Approximate largest number of drawn points of a curve."""
LARGEST = 1e100
"""Largest absolute value that is drawn; the ticks of larger ones overflow."""
MOST_WINDOWED = 1_000_000
"""Number of values in memory at once for running means."""


def running_mean(
    values: ArrayLike, window: int, indices: Sequence[int] | None = None
) -> list[float]:
    """Return the running mean of [N] values over a window that ends at each index.

    Values that are not finite are left out. With `indices`, only the means at these indices are
    returned.
    """
    array = np.asarray(values, dtype=float)
    ends = np.arange(len(array)) if indices is None else np.asarray(indices, dtype=int)
    window = min(window, max(len(array), 1))
    padded = np.concatenate([np.full(window - 1, np.nan), array])
    means: list[float] = []
    for begin in range(0, len(ends), block := max(1, MOST_WINDOWED // window)):
        near = sliding_window_view(padded, window)[ends[begin : begin + block]]
        finite = np.isfinite(near)
        with np.errstate(invalid="ignore", over="ignore"):
            sums = np.where(finite, near, 0.0).sum(axis=1)
            means += (sums / finite.sum(axis=1)).tolist()
    return means


def downsample(values: Sequence[float] | NDArray[np.float64]) -> list[int]:
    """Return the indices of about `MOST_POINTS` values that preserve the shape of the curve.

    A longer curve keeps the lowest and the highest value of each stretch, and the last value.
    """
    count, stretches = len(values), MOST_POINTS // 2
    if count <= MOST_POINTS:
        return list(range(count))
    array = np.asarray(values, dtype=float)
    finite, indices = np.isfinite(array), {count - 1}
    low, high = np.where(finite, array, np.inf), np.where(finite, array, -np.inf)
    for number in range(stretches):
        begin, end = number * count // stretches, (number + 1) * count // stretches
        if finite[begin:end].any():
            indices.add(begin + int(low[begin:end].argmin()))
            indices.add(begin + int(high[begin:end].argmax()))
    return sorted(indices)


def smoothing(points: int) -> int:
    """Return the window of the running mean for a curve of `points` points; 1: no smoothing."""
    return points // 25 if points >= 50 else 1


MOST_SERIES = 8
"""Largest number of curves in one chart."""

_SECTIONS = {
    "evaluation": "Evaluation",
    "role": "Roles",
    "arena": "Arena",
    "policy": "Policies",
    "curriculum": "Curriculum",
    "service": "Services",
    "collapse": "Signs of collapse",
    "seconds": "Time",
}
_TITLES = {
    "evaluation/accuracy": "Evaluation accuracy",
    "role/reward": "Reward per role",
    "role/valid": "Turns whose action parsed",
    "role/completion_tokens": "Completion length, tokens",
    "role/surprisal": "Surprisal of sampled tokens, nats",
    "arena/solve_rate": "Solve rate by task type",
    "arena/valid_proposal": "Valid proposals",
    "role/worked": "Answers with written thinking",
    "policy/lr": "Learning rate",
    "policy/policy_kl": "Policy KL",
    "policy/mismatch_kl": "Mismatch KL",
    "policy/reference_kl": "Reference KL",
    "policy/surprisal": "Surprisal",
    "service/executor": "Executor outcomes",
    "seconds": "Seconds per step, by phase",
}
_FIRST = ("accuracy", "reward", "valid", "valid_proposal", "solve_rate", "loss", "total")
INK, GRID, TEXT = "#00ff01", "#00ff02", "#00ff03"
SERIES = tuple(f"#0000{number:02x}" for number in range(1, MOST_SERIES + 1))
DASHES: tuple[Any, ...] = (
    "-",
    "-",
    "-",
    "-",
    (0, (4, 2)),
    (0, (4, 2)),
    (0, (1, 1.5)),
    (0, (1, 1.5)),
)
"""Line styles of the series: the last four are dashed or dotted, because their colours differ
less."""
_CLASSES = {INK: "ink", GRID: "grid", TEXT: "text"} | {
    colour: str(number) for number, colour in enumerate(SERIES, 1)
}


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve of a chart."""

    label: str
    """Name of the curve within its chart."""
    steps: tuple[int, ...]
    """[N] steps that have a value, ascending."""
    values: tuple[float, ...]
    """[N] values, finite or not."""
    latest: str
    """Text of the last value, with its step if that is not the run's newest step."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves that share a vertical axis."""

    title: str
    """Title of the chart, with the unit if all curves share one."""
    series: tuple[Series, ...]
    """At most `MOST_SERIES` curves."""
    omitted: int
    """Number of curves left out."""
    share: bool
    """True if the values are fractions; the axis then shows per cent."""

    def same_as(self, number: int) -> str:
        """Return the label of the first curve that the curve `number`, from 0, hides because both
        have the same points; "" if there is none."""
        own = self.series[number]
        for each in self.series[:number]:
            if each.steps == own.steps and np.array_equal(each.values, own.values, equal_nan=True):
                return each.label
        return ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """All charts of one prefix."""

    title: str
    """Heading of the section."""
    charts: tuple[Chart, ...]
    """Charts in reading order."""


def arrange(
    rows: Mapping[int, Mapping[str, float]], declared: RunMetrics | None = None
) -> list[Section]:
    """Arrange all metrics of `rows` (step to metrics) as charts grouped by prefix.

    The only task type of an evaluation has no curves of its own, which would repeat the others.
    `declared` has the metrics' units and directions; by default only the library's own.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    curves: dict[str, list[tuple[int, float]]] = {}
    for step in sorted(rows):
        for key, value in rows[step].items():
            if key != "step":
                curves.setdefault(key, []).append((step, value))
    for key in sorted(curves.keys() - repeated(finite_columns(rows))):
        section, chart, label = place(key)
        found.setdefault(section, {}).setdefault(chart, {})[label] = key
    reading = _Reading(
        curves=curves, newest=max(rows, default=0), declared=declared or RunMetrics()
    )
    return [
        Section(
            title=section_title(section),
            charts=tuple(
                reading.chart(chart, found[section][chart])
                for chart in sorted(found[section], key=_reading_order)
            ),
        )
        for section in section_order(found)
    ]


def section_order(found: Iterable[str]) -> list[str]:
    """Sort prefixes of metrics in reading order, without duplicates."""
    given = set(found)
    return [*(name for name in _SECTIONS if name in given), *sorted(given - set(_SECTIONS))]


def section_title(prefix: str) -> str:
    """Return the heading for the charts of a prefix."""
    return _SECTIONS.get(prefix) or _begun(words(prefix))


def place(key: str) -> tuple[str, str, str]:
    """Return (section, chart, curve) of a metric.

    A section is the first segment of the name, a chart the last segment, a curve the segments
    between them. In `seconds`, `service`, `league` and the failed or truncated `episodes`, and for
    the parts of a metric of a role or policy, the last segment names a curve. Each evaluation has a
    chart of its own for a metric of its parts.
    """
    section, *rest = key.split("/")
    if not rest:
        return "other", section, section
    *middle, metric = rest
    if section == "seconds":
        return section, section, "/".join(rest)
    if section == "episodes" and middle:  # the failed or truncated ones, by kind of error
        return section, f"{section}/{middle[0]}", "/".join(rest[1:])
    if section == "service" and middle:
        return section, f"{section}/{middle[0]}", "/".join(rest[1:])
    if section == "evaluation" and len(middle) > 1:  # a chart per part of an evaluation
        return section, f"{section}/{middle[0]}/{metric}", "/".join(middle[1:])
    if section in ("role", "policy") and len(middle) > 1:  # the parts of a role's metric
        return section, f"{section}/{middle[0]}/{middle[1]}", "/".join([*middle[2:], metric])
    if section == "league" and middle:  # a chart per kind of number, not per name of an opponent
        kind, *player = middle
        return section, "/".join([section, *player, kind]), metric
    return section, f"{section}/{metric}", "/".join(middle) or "all"


def _reading_order(name: str) -> tuple[int, int, str]:
    last = name.rpartition("/")[2]
    return name.count("/"), _FIRST.index(last) if last in _FIRST else len(_FIRST), name


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """The curves of a run, the newest step, and the declarations of the metrics."""

    curves: Mapping[str, Sequence[tuple[int, float]]]
    newest: int
    declared: RunMetrics

    def chart(self, name: str, keys: Mapping[str, str]) -> Chart:
        """Return the chart of the curves `keys`: label to metric."""

        def first(label: str) -> tuple[bool, str]:
            return label not in ("all", "total"), label

        def size(label: str) -> tuple[float, str]:
            values = [abs(value) for _, value in self.curves[keys[label]]]
            return -sum(value for value in values if math.isfinite(value)), label

        shown = sorted(sorted(keys, key=size)[:MOST_SERIES], key=first)
        units = {self.declared.of(keys[label]).unit for label in shown}
        return Chart(
            title=_title(name, units),
            series=tuple(self.series(label, keys[label]) for label in shown),
            omitted=len(keys) - len(shown),
            share=units == {"fraction"},
        )

    def series(self, label: str, key: str) -> Series:
        """Return the curve of the metric `key`."""
        points = self.curves[key]
        step, value = points[-1]
        return Series(
            label=words(label),
            steps=tuple(step for step, _ in points),
            values=tuple(value for _, value in points),
            latest=as_of(format_value(self.declared.of(key), value), step, self.newest),
        )


def _title(name: str, units: Collection[str]) -> str:
    """Return a chart's title, with the unit of its values if the title does not name it."""
    section, *rest = name.split("/")
    title = _TITLES.get(name) or _begun(words(rest[-1] if rest else name))
    if len(rest) > 1:
        title += ": " + words("/".join(rest[:-1]))
    if section == "collapse" and units == {"alarm"}:
        title = f"Rule {title.lower()}: 1 where it fired"
    (unit,) = units if len(units) == 1 else ("",)
    named = unit in ("tokens", "seconds", "nats") and unit not in title.lower()
    return f"{title}, {unit}" if named else title


def _begun(text: str) -> str:
    """Return a title with a capital at its beginning. The name of a snapshot, such as base@3, stays
    as it is."""
    return text if "@" in text else text[:1].upper() + text[1:]


def draw(chart: Chart) -> str:
    """Draw a chart as an `<svg>` element. The same chart gives the same bytes."""

    def paint(axes: Axes) -> None:
        for number, series in enumerate(chart.series):
            _plot(axes, series, number)
        _style(axes, chart)

    return svg(3.9, 2.3, paint)


def svg(width: float, height: float, paint: Callable[[Axes], None]) -> str:
    """Return the drawing of `paint` as an `<svg>` element. `width` and `height` are in inches."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the look must not depend on the user's own settings
        matplotlib.rcParams.update(
            {"svg.hashsalt": "selfplay", "svg.fonttype": "none", "font.size": 9.0}
        )
        canvas = Figure(figsize=(width, height), layout="constrained")
        paint(canvas.add_subplot())
        stream = io.BytesIO()
        canvas.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return _inline(stream.getvalue())


def _plot(axes: Axes, series: Series, number: int) -> None:
    # Matplotlib interprets "$" and a leading "_" in labels, so the page has the labels.
    look = {"color": SERIES[number], "solid_capstyle": "round"}
    values = [value if abs(value) <= LARGEST else math.nan for value in series.values]
    window, indices = smoothing(len(values)), downsample(values)
    steps, shown = [series.steps[n] for n in indices], [values[n] for n in indices]
    if window > 1:
        axes.plot(steps, shown, linewidth=0.7, alpha=0.35, **look)  # type: ignore[arg-type]
        shown = running_mean(values, window, indices)
    marker = "o" if len(values) <= 25 else ""
    axes.plot(
        steps,
        shown,
        linewidth=1.7,
        linestyle=DASHES[number],
        marker=marker,
        markersize=3.2,
        **look,  # type: ignore[arg-type]
    )


def bare(axes: Axes, *, grid: Literal["x", "y"]) -> None:
    """Style axes like those of all charts: a line at the bottom, and the grid of one axis."""
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
    axes.grid(axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=INK, pad=5)


def _style(axes: Axes, chart: Chart) -> None:
    """Style the axes of curves by step."""
    bare(axes, grid="y")
    axes.margins(x=0.02, y=0.08)
    axes.set_xlabel("step", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    steps = {step for series in chart.series for step in series.steps}
    if len(steps) == 1:
        (only,) = steps
        axes.set_xlim(only - 1, only + 1)
        axes.xaxis.set_major_locator(FixedLocator([only]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    found = {v for series in chart.series for v in series.values if abs(v) <= LARGEST}
    if found == {0.0}:
        axes.set_ylim(-0.05, 1.05)
    if chart.share:
        percent_axis(axes, "y")
        values = [v for series in chart.series for v in series.values if abs(v) <= LARGEST]
        if all(0 <= value <= 1 for value in values):  # a return as a fraction may lie outside
            axes.set_ylim(-0.03, 1.03)
            axes.yaxis.set_major_locator(FixedLocator([0.0, 0.25, 0.5, 0.75, 1.0]))


def _inline(svg: bytes) -> str:
    """Reduce the SVG of matplotlib to geometry, classes and text."""
    root = ElementTree.fromstring(svg)
    used = set(re.findall(r"(?:url\(|href=[\"'])#([\w-]+)", svg.decode()))
    clean = _element(root, used)
    for name in ("width", "height"):
        clean.attrib.pop(name, None)
    clean.set("aria-hidden", "true")
    return ElementTree.tostring(clean, encoding="unicode").strip()


def _element(source: ElementTree.Element, used: set[str]) -> ElementTree.Element:
    result = ElementTree.Element(source.tag.rpartition("}")[2])
    for name, value in source.attrib.items():
        name = name.rpartition("}")[2]
        if name == "style":
            result.attrib.update(_attributes(value))
        elif (name != "id" or value in used) and name != "version":
            result.set(name, value)
    result.text, result.tail = source.text, source.tail
    kept = (child for child in source if child.tag.rpartition("}")[2] not in ("metadata", "style"))
    result.extend(_element(child, used) for child in kept)
    return result


def _attributes(style: str) -> dict[str, str]:
    """Convert a style to presentation attributes: colours become classes, a font only a size."""
    attributes: dict[str, str] = {}
    classes: list[str] = []
    for name, value in _declarations(style):
        if value in _CLASSES:
            classes.append(f"{name}-{_CLASSES[value]}")
        elif name in ("font", "font-size"):
            size = re.search(r"([\d.]+)px", value)
            if size:
                attributes["font-size"] = size[1]
        elif name != "font-family":
            attributes[name] = value
    if classes:
        attributes["class"] = " ".join(classes)
    return attributes


def _declarations(style: str) -> Iterable[tuple[str, str]]:
    for declaration in style.split(";"):
        name, colon, value = declaration.partition(":")
        if colon:
            yield name.strip(), value.strip()
