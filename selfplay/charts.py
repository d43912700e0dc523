"""Charts: curves grouped by the prefix of their metric, drawn as SVG for inlining in a page.

The SVG carries no colour, style, id or script of its own: every stroke and fill is a class, so that
the page's style sheet decides, in light and in dark, and a strict Content-Security-Policy holds.
"""

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, PercentFormatter

from selfplay.curves import running_mean, smoothing, thinned
from selfplay.figures import figure, is_share, words

MOST_SERIES = 8
"""Curves that one chart can tell apart."""

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
    "arena/solve_rate": "Solve rate by task type",
    "arena/valid_proposal": "Valid proposals",
    "arena/worked": "Answers with written thinking",
    "policy/policy_kl": "Policy KL",
    "policy/surprisal": "Surprisal",
    "service/executor": "Executor outcomes",
    "seconds": "Seconds per step, by phase",
}
_FIRST = ("accuracy", "reward", "valid", "valid_proposal", "solve_rate", "loss", "total")
INK, GRID, TEXT = "#00ff01", "#00ff02", "#00ff03"
SERIES = tuple(f"#0000{number:02x}" for number in range(1, MOST_SERIES + 1))
_DASHES = ("-", "-", "-", "-", (0, (4, 2)), (0, (4, 2)), (0, (1, 1.5)), (0, (1, 1.5)))
_CLASSES = {INK: "ink", GRID: "grid", TEXT: "text"} | {
    colour: str(number) for number, colour in enumerate(SERIES, 1)
}


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve."""

    label: str
    """What it is within its chart."""
    steps: tuple[int, ...]
    """[N] steps at which there is a value, ascending."""
    values: tuple[float, ...]
    """[N] values, finite or not."""
    latest: str
    """The last value in words."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves that share a vertical axis."""

    title: str
    """What is drawn."""
    series: tuple[Series, ...]
    """At most `MOST_SERIES` curves."""
    omitted: int
    """Curves left out beyond those."""
    share: bool
    """Whether the values are shares between 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """The charts of one prefix."""

    title: str
    """What they are about."""
    charts: tuple[Chart, ...]
    """In reading order."""


def arrange(rows: Mapping[int, Mapping[str, float]]) -> list[Section]:
    """All metrics of `rows` (step to metrics), as charts grouped by prefix."""
    keys = sorted({key for row in rows.values() for key in row if key != "step"})
    found: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for key in keys:
        section, chart, label = _place(key)
        found.setdefault(section, {}).setdefault(chart, []).append((label, key))
    order = [*_SECTIONS, *sorted(set(found) - set(_SECTIONS))]
    return [
        Section(
            title=_SECTIONS.get(section, words(section).capitalize()),
            charts=tuple(
                _chart(chart, found[section][chart], rows)
                for chart in sorted(found[section], key=_reading_order)
            ),
        )
        for section in order
        if section in found
    ]


def _place(key: str) -> tuple[str, str, str]:
    """(section, chart, curve) of a metric: one chart per last segment, one curve per the rest."""
    section, *rest = key.split("/")
    if not rest:
        return "other", section, section
    *middle, metric = rest
    if section == "seconds":
        return section, section, "/".join(rest)
    if section == "service" and middle:
        return section, f"{section}/{middle[0]}", "/".join(rest[1:])
    if section == "evaluation" and len(middle) > 1:  # a part of an evaluation: a chart of its own
        return section, f"{section}/{middle[0]}/{metric}", "/".join(middle[1:])
    if section in ("role", "policy") and len(middle) > 1:  # the parts of one role's figure
        return section, f"{section}/{middle[0]}/{middle[1]}", "/".join([*middle[2:], metric])
    return section, f"{section}/{metric}", "/".join(middle) or "all"


def _reading_order(name: str) -> tuple[int, int, str]:
    last = name.rpartition("/")[2]
    return name.count("/"), _FIRST.index(last) if last in _FIRST else len(_FIRST), name


def _chart(
    name: str, curves: Sequence[tuple[str, str]], rows: Mapping[int, Mapping[str, float]]
) -> Chart:
    def first(curve: tuple[str, str]) -> tuple[bool, str]:
        return curve[0] not in ("all", "total"), curve[0]

    def size(curve: tuple[str, str]) -> tuple[float, str]:
        values = [abs(row.get(curve[1], 0.0)) for row in rows.values()]
        return -sum(value for value in values if math.isfinite(value)), curve[0]

    shown = sorted(sorted(curves, key=size)[:MOST_SERIES], key=first)
    _, *rest = name.split("/")
    title = _TITLES.get(name) or words(rest[-1] if rest else name).capitalize()
    if len(rest) > 1:
        title += ": " + words("/".join(rest[:-1]))
    return Chart(
        title=title,
        series=tuple(_curve(label, key, rows) for label, key in shown),
        omitted=len(curves) - len(shown),
        share=all(is_share(key) for _, key in shown),
    )


def _curve(label: str, key: str, rows: Mapping[int, Mapping[str, float]]) -> Series:
    points = [(step, rows[step][key]) for step in sorted(rows) if key in rows[step]]
    return Series(
        label=words(label),
        steps=tuple(step for step, _ in points),
        values=tuple(value for _, value in points),
        latest=figure(key, points[-1][1]),
    )


def draw(chart: Chart) -> str:
    """The chart as an `<svg>` element. The same chart gives the same bytes."""

    def paint(axes: Axes) -> None:
        for number, series in enumerate(chart.series):
            _plot(axes, series, number)
        _style(axes, chart)

    return svg(3.9, 2.3, paint)


def svg(width: float, height: float, paint: Callable[[Axes], None]) -> str:
    """What `paint` draws on axes of this size in inches, as an `<svg>` element."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the look must not depend on the reader's own settings
        matplotlib.rcParams.update(
            {"svg.hashsalt": "selfplay", "svg.fonttype": "none", "font.size": 9.0}
        )
        canvas = Figure(figsize=(width, height), layout="constrained")
        paint(canvas.add_subplot())
        stream = io.BytesIO()
        canvas.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return _inline(stream.getvalue())


def _plot(axes: Axes, series: Series, number: int) -> None:
    # Text would be read as mathematics or as a private label, so labels live in the page instead.
    look = {"color": SERIES[number], "solid_capstyle": "round"}
    values = [value if math.isfinite(value) else math.nan for value in series.values]
    window, places = smoothing(len(values)), thinned(values)
    steps, shown = [series.steps[n] for n in places], [values[n] for n in places]
    if window > 1:
        axes.plot(steps, shown, linewidth=0.7, alpha=0.35, **look)  # type: ignore[arg-type]
        shown = running_mean(values, window, places)
    marker = "o" if len(values) <= 25 else ""
    axes.plot(
        steps,
        shown,
        linewidth=1.7,
        linestyle=_DASHES[number],
        marker=marker,
        markersize=3.2,
        **look,  # type: ignore[arg-type]
    )


def bare(axes: Axes, *, grid: Literal["x", "y"]) -> None:
    """The look that all charts share: a line below, and the grid of one axis."""
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
    axes.grid(axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=INK, pad=5)


def _style(axes: Axes, chart: Chart) -> None:
    """The look of curves by step."""
    bare(axes, grid="y")
    axes.margins(x=0.02, y=0.08)
    axes.set_xlabel("step", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    if chart.share:
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_locator(FixedLocator([0.0, 0.25, 0.5, 0.75, 1.0]))
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def _inline(svg: bytes) -> str:
    """Strip what matplotlib writes down to geometry, classes and text."""
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
    """A style as presentation attributes, its colours as classes, its font as a size alone."""
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
