"""Axis of fractions: ticks in per cent. The pictures of reports, sweeps and studies use it."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import Formatter

MOST_DECIMALS = 12
"""Largest number of decimals of a tick."""


class PercentTicks(Formatter):
    """Formatter of fractions as per cent, with as many decimals as the distance of ticks needs."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the text of a single tick."""
        return self.format_ticks([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the texts of ticks at ascending values."""
        shown = [100 * float(value) for value in values]
        exact = 1e-3 * min((after - before for before, after in pairwise(shown)), default=1.0)
        decimals = next(
            (
                number
                for number in range(MOST_DECIMALS)
                if all(abs(round(each, number) - each) <= exact for each in shown)
            ),
            MOST_DECIMALS,
        )
        return [f"{round(each, decimals) + 0.0:.{decimals}f}%" for each in shown]  # 0.0: no -0%


def percent_axis(axes: Axes, axis: Literal["x", "y"]) -> None:
    """Label the axis of drawn fractions as per cent. If all are 0, the axis is from 0 to 100 %."""
    drawn, place = (axes.xaxis, 0) if axis == "x" else (axes.yaxis, 1)
    drawn.set_major_formatter(PercentTicks())
    if not np.any(axes.dataLim.get_points()[:, place]):
        axes.set(**{f"{axis}lim": (-0.03, 1.03)})
