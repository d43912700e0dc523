"""Files of the pictures of a study for a paper: SVG, PNG and PDF, in the width of its columns."""

import io
from collections.abc import Iterator, Sequence
from glob import escape
from itertools import chain
from pathlib import Path
from textwrap import wrap

import matplotlib
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from selfplay.run.directory import reporting_disk
from selfplay.run.report.charts import DASHES, GRID, INK, SERIES, TEXT
from selfplay.run.report.html import visible
from selfplay.study.plots import NARROW, Drawing

_INKS = ["#2a5db0", "#c8571b", "#2b8a57", "#8a4fa8", "#b08a00", "#1893a5", "#b3345f", "#6c6f75"]
SWATCH = 6
"""Width of the line before a name of the legend, in letters."""
LETTER = 0.58 / 72
"""Mean width of a letter in inches, per point of its size."""
PRINT = {INK: "#1b1c1e", TEXT: "#1b1c1e", GRID: "#deded8", **dict(zip(SERIES, _INKS, strict=True))}
"""Colours of the page's light style sheet, for print."""
COLUMN_WIDTH, TEXT_WIDTH = 3.3, 6.7
"""Widths in inches of a picture for print: one column of a paper, or both."""
FONT, SMALLEST_FONT = 9.0, 5.0
"""Size of the letters on the page, and the smallest size in print, in points."""
FORMATS = ("svg", "png", "pdf")
"""File formats of a picture for print."""
NUMBERS = ("[0-9]", "[0-9][0-9]")
"""Patterns of the numbers of pictures in the names of their files."""


def save(drawings: Sequence[Drawing], folder: Path, name: str) -> list[Path]:
    """Write each picture for print, in every format; return the paths.

    The files of a single picture are called `<name>`, those of several `<name>-1`, `<name>-2` and
    so on. The same pictures give the same bytes. Files of earlier pictures are removed.
    """
    paths = []
    for kind in FORMATS:
        numbered = [folder.glob(f"{escape(name)}-{places}.{kind}") for places in NUMBERS]
        for old in (folder / f"{name}.{kind}", *chain.from_iterable(numbered)):
            with reporting_disk(folder):
                old.unlink(missing_ok=True)
    for place, drawing in enumerate(drawings, 1):
        own = name if len(drawings) == 1 else f"{name}-{place}"
        paths += [_written(folder / f"{own}.{kind}", data) for kind, data in printed(drawing)]
    return paths


def print_size(drawing: Drawing) -> tuple[float, float, float]:
    """Return width and height of a picture for print in inches, and its font size in points.

    The width is that of one or of both columns of a paper (`COLUMN_WIDTH`, `TEXT_WIDTH`). If the
    picture itself is wider, its font is smaller.
    """
    width, height = drawing.size()
    if width <= NARROW:
        scale = COLUMN_WIDTH / width
        return COLUMN_WIDTH, height * max(scale, 0.8), FONT * min(max(scale, 0.85), 1.0)
    return TEXT_WIDTH, height, max(FONT * min(TEXT_WIDTH / width, 1.0), SMALLEST_FONT)


def printed(drawing: Drawing) -> Iterator[tuple[str, bytes]]:
    """Yield (format, content) of a picture for print; see `print_size`."""
    width, height, font = print_size(drawing)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.hashsalt": "selfplay",
                "svg.fonttype": "none",
                "font.size": font,
                "pdf.fonttype": 42,
            }
        )
        names = [str(visible(name)) for name in drawing.legend]
        columns = 2 if max(map(len, names), default=0) * font * LETTER * 2 < width - 1.4 else 1
        letters = int(width / (font * LETTER))
        if columns == 1:
            names = ["\n".join(wrap(name, letters - SWATCH)) for name in names]
        more = 0.14 * sum(name.count("\n") for name in names)
        legend = 0.18 * -(-len(names) // columns) + more if len(names) > 1 else 0.0
        title = wrap(str(visible(drawing.title)), letters)
        height += 0.35 + 0.15 * len(title) + legend
        canvas = Figure(figsize=(width, height), layout="constrained")
        axes = canvas.add_subplot()
        drawing.paint(axes)
        words = canvas.suptitle("\n".join(title), fontsize=font + 0.5, x=0.01, ha="left")
        words.set_parse_math(False)
        if len(names) > 1:
            lines = [
                Line2D([], [], color=SERIES[n], linestyle=DASHES[n]) for n in range(len(names))
            ]
            shown = canvas.legend(
                lines,
                names,
                frameon=False,
                fontsize=min(font, 8.0),
                loc="outside lower left",
                ncols=columns,
            )
            for text in shown.get_texts():
                text.set_parse_math(False)
        _print_colours(canvas)
        unset = {"svg": "Date", "png": "Software", "pdf": "CreationDate"}  # they differ each time
        for kind in FORMATS:
            stream = io.BytesIO()
            canvas.savefig(stream, format=kind, dpi=200, metadata={unset[kind]: None})
            yield kind, stream.getvalue()


def _written(path: Path, data: bytes) -> Path:
    with reporting_disk(path.parent):
        path.write_bytes(data)
    return path


def _print_colours(canvas: Figure) -> None:
    """Replace the placeholder colours of the page's style sheet by those of print."""
    canvas.draw_without_rendering()  # ticks are made when they are first drawn
    for artist in canvas.findobj():
        for name in ("color", "facecolor", "edgecolor"):
            get = getattr(artist, f"get_{name}", None)
            found = [] if get is None else list(to_rgba_array(get()))
            colour = PRINT.get(to_hex(found[0])) if len(found) == 1 else None
            if colour is not None:
                getattr(artist, f"set_{name}")(colour)
