"""Tables and pictures of the bake-off: rows in Markdown, and intervals as SVG files."""

from collections.abc import Sequence
from pathlib import Path

from selfplay.study.figure_files import printed
from selfplay.study.plots import IntervalPlot
from selfplay.study.stats.bootstrap import Estimate, over_runs


def table_row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def table_head(cells: Sequence[str]) -> str:
    """Return the first two rows of a Markdown table."""
    return f"{table_row(cells)}\n|{'---|' * len(cells)}"


def interval(estimate: Estimate, *, digits: int = 2) -> str:
    """Return the text of an estimate with its interval."""
    value, low, high = estimate.value, estimate.low, estimate.high
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def mean(values: Sequence[float], *, digits: int = 2) -> str:
    """Return the text of a mean with Student's interval."""
    return interval(over_runs("mean", values), digits=digits)


def write_picture(
    path: Path, *, title: str, estimates: Sequence[Estimate], label: str, null: float = 0.0
) -> Path:
    """Write estimates with their intervals as an SVG file; return its path.

    Args:
        path: The file.
        title: Title of the picture.
        estimates: The estimates, from top to bottom.
        label: Label of the axis.
        null: Value without a difference, where a vertical line is drawn.
    """
    picture = IntervalPlot(title=title, estimates=estimates, label=label, null=null)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dict(printed(picture))["svg"])
    return path
