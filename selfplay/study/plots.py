"""Pictures of a study: matrices, intervals and curves, for the page and for print.

Each is painted twice: as SVG without colours of its own, which the page's style sheet dresses, and
as SVG and PNG files for a paper.

A picture of sets of runs: a dot for each run, a bar at the mean of its set.
"""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Protocol

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from selfplay.run.directory import reporting_disk
from selfplay.run.formatting import number
from selfplay.run.report import charts
from selfplay.run.report.charts import GRID, INK, MOST_SERIES, SERIES, TEXT, bare
from selfplay.run.report.html import visible
from selfplay.study.stats.bootstrap import Estimate

_INKS = ["#2a5db0", "#c8571b", "#2b8a57", "#8a4fa8", "#b08a00", "#1893a5", "#b3345f", "#6c6f75"]
PRINT = {INK: "#1b1c1e", TEXT: "#1b1c1e", GRID: "#deded8", **dict(zip(SERIES, _INKS, strict=True))}
"""The colours of the page's light style sheet, for paper."""
LONGEST_LABEL = 36
"""Characters of a line of a label."""
LINES = 3
"""Lines of a label beside a row; one that is longer is cut."""


ROWS_WIDTH = 6.4
"""Inches of a picture whose rows have names of several words; the page gives it more room."""


class Drawing(Protocol):
    """A picture that can be painted on axes."""

    @property
    def title(self) -> str:
        """What it shows."""
        ...

    @property
    def legend(self) -> Sequence[str]:
        """Names of its series, in the order of their colours; empty where there is one alone."""
        ...

    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        ...

    def paint(self, axes: Axes) -> None:
        """Draw."""
        ...


@dataclass(frozen=True, kw_only=True)
class MatrixPlot:
    """A number in each cell, shaded by its size."""

    title: str
    rows: Sequence[str]
    """Names of the rows."""
    columns: Sequence[str]
    """Names of the columns."""
    values: Sequence[Sequence[float]]
    """[rows][columns], NaN where there is none."""
    legend: Sequence[str] = ()

    def size(self) -> tuple[float, float]:
        """Room for the labels and the cells."""
        return 2.2 + 0.75 * len(self.columns), 1.1 + 0.42 * len(self.rows)

    def paint(self, axes: Axes) -> None:
        """Squares whose opacity says how large a value is among the others."""
        known = [v for row in self.values for v in row if math.isfinite(v)]
        low, high = min(known, default=0.0), max(known, default=1.0)
        for i, row in enumerate(self.values):
            for j, value in enumerate(row):
                if math.isfinite(value):
                    depth = (value - low) / (high - low) if high > low else 0.5
                    square = Rectangle(
                        (j - 0.5, i - 0.5), 1, 1, color=SERIES[0], alpha=0.06 + 0.5 * depth
                    )
                    axes.add_patch(square)
                axes.text(j, i, number(value), ha="center", va="center", color=TEXT)
        axes.set_xlim(-0.5, len(self.columns) - 0.5)
        axes.set_ylim(len(self.rows) - 0.5, -0.5)
        _bare(axes)
        labels(axes, x=self.columns, y=self.rows)


@dataclass(frozen=True, kw_only=True)
class IntervalPlot:
    """A dot and its interval for each name, one below the other."""

    title: str
    estimates: Sequence[Estimate]
    """What is drawn, the first on top."""
    null: float | None = None
    """Where a line stands that means: nothing to see."""
    legend: Sequence[str] = ()

    def size(self) -> tuple[float, float]:
        """A line for each."""
        return ROWS_WIDTH, 0.8 + row([each.name for each in self.estimates]) * len(self.estimates)

    def paint(self, axes: Axes) -> None:
        """Dots, bars, and the line of nothing to see."""
        if self.null is not None:
            axes.axvline(self.null, color=INK, linewidth=0.8, linestyle=(0, (3, 2)))
        for place, each in enumerate(self.estimates):
            if not math.isfinite(each.value):
                continue
            ends = [each.low, each.value if each.high == math.inf else each.high]  # or one-sided
            if all(map(math.isfinite, ends)):
                axes.plot(ends, [place, place], color=SERIES[0], linewidth=2, alpha=0.5)
            axes.plot([each.value], [place], "o", color=SERIES[0], ms=5)
        bare(axes, grid="x")
        axes.set_ylim(len(self.estimates) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        labels(axes, y=[each.name for each in self.estimates])


@dataclass(frozen=True, kw_only=True)
class CurvePlot:
    """Series over a common axis, each with a band if it has one."""

    title: str
    x: Sequence[float]
    """[N] places."""
    series: Mapping[str, Sequence[float]]
    """Name to [N] values, NaN where there is none; at most eight."""
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    """Name to the [N] lower and upper ends of its band."""
    xlabel: str = "step"
    """What the axis is."""
    logarithmic: bool = False
    """Whether the axis doubles."""

    @property
    def legend(self) -> Sequence[str]:
        """The names."""
        return list(self.series)[:MOST_SERIES]

    def size(self) -> tuple[float, float]:
        """Of a column of a paper."""
        return 4.6, 2.8

    def paint(self, axes: Axes) -> None:
        """Lines, and bands behind them."""
        for place, name in enumerate(self.legend):
            if name in self.bands:
                low, high = self.bands[name]
                axes.fill_between(self.x, low, high, color=SERIES[place], alpha=0.15, linewidth=0)
            axes.plot(
                self.x,
                self.series[name],
                color=SERIES[place],
                linewidth=1.7,
                marker="o" if len(self.x) <= 25 else "",
                markersize=3.2,
            )
        bare(axes, grid="y")
        axes.margins(x=0.02, y=0.08)
        axes.set_xlabel(self.xlabel, color=INK, parse_math=False)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        if self.logarithmic:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, place: number(value))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def inline(drawing: Drawing) -> str:
    """The picture as an `<svg>` element for the page."""
    width, height = drawing.size()
    return charts.svg(width, height, drawing.paint)


def save(drawings: Sequence[Drawing], folder: Path, name: str) -> list[Path]:
    """Write all pictures as `<name>.svg` and `<name>.png`, below each other, for print."""
    sizes = [drawing.size() for drawing in drawings]
    if not sizes:
        return []
    width, heights = max(size[0] for size in sizes), [size[1] + 0.5 for size in sizes]
    paths = []
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "selfplay", "font.size": 9.0})
        figure = Figure(figsize=(width, sum(heights)), layout="constrained")
        panels = figure.subplots(len(drawings), 1, squeeze=False, height_ratios=heights)[:, 0]
        for drawing, axes in zip(drawings, panels, strict=True):
            drawing.paint(axes)
            axes.set_title(str(visible(drawing.title)), fontsize=9.5, loc="left", parse_math=False)
            if len(drawing.legend) > 1:
                names = [str(visible(name)) for name in drawing.legend]
                lines = [Line2D([], [], color=c) for c in SERIES[: len(names)]]
                shown = axes.legend(lines, names, frameon=False, fontsize=8)
                for text in shown.get_texts():
                    text.set_parse_math(False)
        _print_colours(figure)
        for kind in ("svg", "png"):
            stream = io.BytesIO()
            told = {"Date": None} if kind == "svg" else {"Software": None}
            figure.savefig(stream, format=kind, dpi=200, metadata=told)
            path = folder / f"{name}.{kind}"
            with reporting_disk(folder):
                path.write_bytes(stream.getvalue())
            paths.append(path)
    return paths


def _print_colours(figure: Figure) -> None:
    """Put the colours of print in place of the names that the page's style sheet reads."""
    figure.draw_without_rendering()  # ticks are made when they are first drawn
    for artist in figure.findobj():
        for name in ("color", "facecolor", "edgecolor"):
            get = getattr(artist, f"get_{name}", None)
            found = [] if get is None else list(to_rgba_array(get()))
            colour = PRINT.get(to_hex(found[0])) if len(found) == 1 else None
            if colour is not None:
                getattr(artist, f"set_{name}")(colour)


def _bare(axes: Axes) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, labelcolor=INK, pad=5)


def labels(axes: Axes, *, x: Sequence[str] = (), y: Sequence[str] = ()) -> None:
    """Names at the ticks, taken as they are written and never as mathematics.

    Characters that SVG cannot hold, such as an agent's or a folder's name may have, are shown.
    """
    if x:
        axes.set_xticks(range(len(x)), [_short(name) for name in x], parse_math=False)
        for text in axes.get_xticklabels():
            text.set_rotation(25 if max(map(len, x)) > 9 else 0)
            text.set_horizontalalignment("right" if max(map(len, x)) > 9 else "center")
    if y:
        axes.set_yticks(range(len(y)), [_lines(name) for name in y], parse_math=False)


def _short(name: str) -> str:
    plain = str(visible(name))
    return plain if len(plain) <= LONGEST_LABEL else f"{plain[: LONGEST_LABEL - 3]}..."


def row(names: Sequence[str]) -> float:
    """Inches of a row that has room for any of these names."""
    return 0.2 + 0.14 * max((_lines(name).count("\n") + 1 for name in names), default=1)


def _lines(name: str) -> str:
    """The name in as many lines as it may have."""
    return "\n".join(wrap(str(visible(name)), LONGEST_LABEL, max_lines=LINES, placeholder=" ..."))


BETWEEN = 0.16
"""Between the lines of two sets, in lines of figures."""


@dataclass(frozen=True, kw_only=True)
class DotPlot:
    """Figures one below the other, each set of runs in a colour of its own."""

    title: str
    rows: Sequence[str]
    """Names of the figures."""
    sets: Mapping[str, Sequence[Sequence[float]]]
    """Set to [figures][runs] values, NaN where there is none; at most eight."""
    null: float | None = None
    """Where a line stands that means: nothing to see."""

    @property
    def legend(self) -> Sequence[str]:
        """The sets."""
        return list(self.sets)[:MOST_SERIES]

    def size(self) -> tuple[float, float]:
        """A line for each figure, higher where there are more sets."""
        height = row(self.rows) + BETWEEN * 0.6 * (len(self.legend) - 1)
        return ROWS_WIDTH, 0.8 + height * len(self.rows)

    def paint(self, axes: Axes) -> None:
        """Dots, bars, and the line of nothing to see."""
        if self.null is not None:
            axes.axvline(self.null, color=INK, linewidth=0.8, linestyle=(0, (3, 2)))
        for index, name in enumerate(self.legend):
            beside = (index - (len(self.legend) - 1) / 2) * BETWEEN
            for place, values in enumerate(self.sets[name]):
                known = [value for value in values if math.isfinite(value)]
                if not known:
                    continue
                at, mean = place + beside, sum(known) / len(known)
                axes.plot(known, [at] * len(known), "o", color=SERIES[index], ms=4, alpha=0.5)
                axes.plot([mean], [at], "|", color=SERIES[index], ms=9, markeredgewidth=2)
        bare(axes, grid="x")
        axes.set_ylim(len(self.rows) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        labels(axes, y=self.rows)


def undrawn(drawings: Sequence[DotPlot | CurvePlot]) -> list[str]:
    """The note on what is in no picture because there are no more colours."""
    series = [each.sets if isinstance(each, DotPlot) else each.series for each in drawings]
    names = dict.fromkeys(name for each in series for name in list(each)[MOST_SERIES:])
    return [f"pictures show the first {MOST_SERIES}, and not {', '.join(names)}"] if names else []
