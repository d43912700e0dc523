"""Pictures of a study: matrices, intervals, curves and dots, for the page and for print.

A picture for the page is SVG without its own colours, which are those of the page's style sheet;
`figure_files` writes the same pictures for a paper.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import ClassVar, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from selfplay.run.formatting import number
from selfplay.run.report import charts
from selfplay.run.report.charts import DASHES, INK, MOST_SERIES, SERIES, TEXT, bare
from selfplay.run.report.html import visible
from selfplay.run.report.percent_axis import percent_axis
from selfplay.study.stats.bootstrap import Estimate

LONGEST_LABEL = 36
"""Largest number of characters in a line of a label."""
LINES = 3
"""Largest number of lines of a row's label; the rest is cut."""


ROWS_WIDTH = 6.7
"""Width in inches of a picture whose rows have long names; the page gives it more room."""
NARROW = 4.6
"""Largest width in inches on the page of a picture that is printed in one column."""


class Drawing(Protocol):
    """A picture that can be painted on axes."""

    @property
    def title(self) -> str:
        """Title in one line."""
        ...

    @property
    def legend(self) -> Sequence[str]:
        """Names of the series in the order of their colours; empty for a single series."""
        ...

    def size(self) -> tuple[float, float]:
        """Return the width and height in inches."""
        ...

    def paint(self, axes: Axes) -> None:
        """Draw the picture on the axes."""
        ...


@dataclass(frozen=True, kw_only=True)
class MatrixPlot:
    """A matrix with a number in each cell, shaded by its value.

    With negative values, each sign has a colour, and the same strength at the same distance from 0.
    """

    title: str
    rows: Sequence[str]
    """Names of the rows."""
    columns: Sequence[str]
    """Names of the columns."""
    values: Sequence[Sequence[float]]
    """[rows][columns] values, NaN for a missing value."""
    legend: ClassVar[Sequence[str]] = ()

    def size(self) -> tuple[float, float]:
        """Return the size in inches for the labels and the cells."""
        return 2.2 + 0.75 * len(self.columns), 1.1 + 0.42 * len(self.rows)

    def paint(self, axes: Axes) -> None:
        """Draw squares whose opacity grows with the value, or with its distance from 0."""
        shades = self.shades()
        for i, row in enumerate(self.values):
            for j, value in enumerate(row):
                if math.isfinite(value):
                    color, alpha = shades(value)
                    axes.add_patch(
                        Rectangle((j - 0.5, i - 0.5), 1, 1, color=color, alpha=alpha, linewidth=0)
                    )
                axes.text(j, i, number(value), ha="center", va="center", color=TEXT)
        axes.set_xlim(-0.5, len(self.columns) - 0.5)
        axes.set_ylim(len(self.rows) - 0.5, -0.5)
        _bare(axes)
        labels(axes, x=self.columns, y=self.rows)

    def shades(self) -> Callable[[float], tuple[str, float]]:
        """Return the function from a value to the colour and opacity of its cell."""
        known = [v for row in self.values for v in row if math.isfinite(v)]
        low, high = min(known, default=0.0), max(known, default=1.0)
        if low < 0:
            most = max(-low, high)
            return lambda value: (SERIES[value < 0], 0.56 * abs(value) / most)
        width = high - low
        return lambda value: (SERIES[0], 0.06 + 0.5 * ((value - low) / width if width else 0.5))


@dataclass(frozen=True, kw_only=True)
class IntervalPlot:
    """A dot with its interval for each estimate, one estimate per row."""

    title: str
    estimates: Sequence[Estimate]
    """Estimates, the first on top."""
    label: str
    """Label of the axis of values, with the unit."""
    null: float | None = None
    """Position of the null line; None: no line."""
    legend: ClassVar[Sequence[str]] = ()

    def size(self) -> tuple[float, float]:
        """Return the size in inches, with one row for each estimate."""
        return ROWS_WIDTH, 1.0 + row([each.name for each in self.estimates]) * len(self.estimates)

    def paint(self, axes: Axes) -> None:
        """Draw points, intervals and the null line."""
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
        axes.set_xlabel(_lines(self.label), color=INK, parse_math=False)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        labels(axes, y=[each.name for each in self.estimates])


@dataclass(frozen=True, kw_only=True)
class CurvePlot:
    """Series over a common axis, each with a band if it has one."""

    title: str
    x: Sequence[float]
    """[N] positions on the axis."""
    series: Mapping[str, Sequence[float]]
    """Name to [N] values, NaN for a missing value; at most eight series are drawn."""
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    """Name to the [N] lower and upper ends of its band."""
    label: str
    """Label of the axis of values, with the unit."""
    xlabel: str = "step"
    """Label of the axis."""
    logarithmic: bool = False
    """True for a logarithmic axis of base 2."""
    percent: bool = False
    """True labels the axis of values as per cent; the values are fractions."""

    @property
    def legend(self) -> Sequence[str]:
        """Names of the drawn series; a series that hides an equal earlier one names the earlier one
        too."""
        drawn = list(self.series)[:MOST_SERIES]
        same = ((name, self._same_as(name, drawn[:place])) for place, name in enumerate(drawn))
        return [f"{name} (same as {first})" if first else name for name, first in same]

    def _same_as(self, name: str, before: Sequence[str]) -> str:
        """Return the first of the series `before` that has the values and the band of a series."""

        def points(of: str) -> list[list[float]]:
            return [list(each) for each in (self.series[of], *self.bands.get(of, ()))]

        own = points(name)
        for each in before:
            if len(own) == len(other := points(each)) and np.array_equal(
                own, other, equal_nan=True
            ):
                return each
        return ""

    def size(self) -> tuple[float, float]:
        """Return the size in inches on the page."""
        return NARROW, 2.8

    def paint(self, axes: Axes) -> None:
        """Draw bands, and lines above them.

        A series of at most `FEW` values has a dot at each, and its line passes over missing values;
        the line of a longer series is interrupted there.
        """
        for place, name in enumerate(list(self.series)[:MOST_SERIES]):
            line = np.array(self.series[name], dtype=float)
            few = np.isfinite(line).sum() <= FEW
            kept = np.isfinite(line) if few else np.full(len(line), True)
            x = np.array(self.x, dtype=float)[kept]
            if name in self.bands:
                low, high = (np.array(end, dtype=float)[kept] for end in self.bands[name])
                axes.fill_between(x, low, high, color=SERIES[place], alpha=0.15, linewidth=0)
            axes.plot(
                x,
                line[kept],
                color=SERIES[place],
                linewidth=1.7,
                linestyle=DASHES[place],
                marker="o" if few else "",
                markersize=3.2,
            )
        bare(axes, grid="y")
        axes.margins(x=0.02, y=0.08)
        axes.set_xlabel(_lines(self.xlabel), color=INK, parse_math=False)
        axes.set_ylabel(_lines(self.label), color=INK, parse_math=False)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        if self.percent:
            percent_axis(axes, "y")
        if self.logarithmic:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, place: number(value))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


FEW = 25
"""Largest number of values of a series that has a dot at each value."""


def inline(drawing: Drawing) -> str:
    """Return the picture as an `<svg>` element for the page."""
    width, height = drawing.size()
    return charts.svg(width, height, drawing.paint)


def _bare(axes: Axes) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, labelcolor=INK, pad=5)


def labels(axes: Axes, *, x: Sequence[str] = (), y: Sequence[str] = ()) -> None:
    """Set the labels of the ticks as plain text, never as mathematics.

    Characters that SVG cannot contain (names of agents or folders may have them) are escaped.
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
    """Return the height in inches of a row with room for each of these names."""
    return 0.2 + 0.14 * max((_lines(name).count("\n") + 1 for name in names), default=1)


def _lines(name: str) -> str:
    """Return the name in at most `LINES` lines."""
    return "\n".join(wrap(str(visible(name)), LONGEST_LABEL, max_lines=LINES, placeholder=" ..."))


BETWEEN = 0.16
"""Distance between the dots of two sets, in rows."""


@dataclass(frozen=True, kw_only=True)
class DotPlot:
    """A dot for each run and a bar at the mean of each set of runs, one metric per row."""

    title: str
    rows: Sequence[str]
    """Names of the metrics."""
    sets: Mapping[str, Sequence[Sequence[float]]]
    """Set to [metrics][runs] values, NaN for a missing value; at most eight sets are drawn."""
    label: str
    """Label of the axis of values, with the unit."""
    null: float | None = None
    """Position of the null line; None: no line."""

    @property
    def legend(self) -> Sequence[str]:
        """Names of the drawn sets."""
        return list(self.sets)[:MOST_SERIES]

    def size(self) -> tuple[float, float]:
        """Return the size in inches; a row is higher if there are more sets."""
        height = row(self.rows) + BETWEEN * 0.6 * (len(self.legend) - 1)
        return ROWS_WIDTH, 1.0 + height * len(self.rows)

    def paint(self, axes: Axes) -> None:
        """Draw points, means and the null line."""
        if self.null is not None:
            axes.axvline(self.null, color=INK, linewidth=0.8, linestyle=(0, (3, 2)))
        for index, name in enumerate(self.legend):
            shift = (index - (len(self.legend) - 1) / 2) * BETWEEN
            for place, values in enumerate(self.sets[name]):
                known = [value for value in values if math.isfinite(value)]
                if not known:
                    continue
                at, mean = place + shift, sum(known) / len(known)
                axes.plot(known, [at] * len(known), "o", color=SERIES[index], ms=4, alpha=0.5)
                axes.plot([mean], [at], "|", color=SERIES[index], ms=9, markeredgewidth=2)
        bare(axes, grid="x")
        axes.set_ylim(len(self.rows) - 0.4, -0.6)
        axes.set_xlabel(_lines(self.label), color=INK, parse_math=False)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        labels(axes, y=self.rows)


def undrawn(drawings: Sequence[DotPlot | CurvePlot]) -> list[str]:
    """Return a note that names the series beyond `MOST_SERIES`, which are not drawn; [] if none."""
    series = [each.sets if isinstance(each, DotPlot) else each.series for each in drawings]
    names = dict.fromkeys(name for each in series for name in list(each)[MOST_SERIES:])
    return [f"pictures show the first {MOST_SERIES}, and not {', '.join(names)}"] if names else []
