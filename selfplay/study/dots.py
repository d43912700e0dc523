"""A picture of sets of runs: a dot for each run, a bar at the mean of its set."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from selfplay.charts import INK, MOST_SERIES, SERIES, bare
from selfplay.study.plots import ROWS_WIDTH, Curves, labels, row

BETWEEN = 0.16
"""Between the lines of two sets, in lines of figures."""


@dataclass(frozen=True, kw_only=True)
class Dots:
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
        for number, name in enumerate(self.legend):
            beside = (number - (len(self.legend) - 1) / 2) * BETWEEN
            for place, values in enumerate(self.sets[name]):
                known = [value for value in values if math.isfinite(value)]
                if not known:
                    continue
                at, mean = place + beside, sum(known) / len(known)
                axes.plot(known, [at] * len(known), "o", color=SERIES[number], ms=4, alpha=0.5)
                axes.plot([mean], [at], "|", color=SERIES[number], ms=9, markeredgewidth=2)
        bare(axes, grid="x")
        axes.set_ylim(len(self.rows) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        labels(axes, y=self.rows)


def undrawn(drawings: Sequence[Dots | Curves]) -> list[str]:
    """The note on what is in no picture because there are no more colours."""
    series = [each.sets if isinstance(each, Dots) else each.series for each in drawings]
    names = dict.fromkeys(name for each in series for name in list(each)[MOST_SERIES:])
    return [f"pictures show the first {MOST_SERIES}, and not {', '.join(names)}"] if names else []
