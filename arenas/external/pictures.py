"""Drawings of other libraries' games: from an array of pixels, or from the text of a board."""

import re
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfplay.drawing import Shape, StateDrawing, board

SIZES = (96, 64, 48, 32, 24, 16)
"""Numbers of squares on the longer side that are tried, until a picture has few enough shapes."""
MOST_SQUARES = 2_500
"""Largest number of shapes of a picture."""
SIDE = 320.0
"""Length of the longer side of a picture."""
COLORS = 16
"""Number of levels of each of the three colors."""
_GRID = re.compile(r"\A\S( \S)+(\n\S( \S)+)+\Z")
DISCS = {"1": "1", "2": "2"}
"""Text of a square of each of the first two players to the color of its disc."""


def picture(pixels: Any, *, title: str) -> StateDrawing | None:
    """Return a drawing of an array [rows, columns, 3 or 4] of colors from 0 to 255.

    The picture is coarser than the array; equal neighbours in a row become one shape. The result is
    None for anything else, and for a picture with too many different squares.
    """
    array = np.asarray(pixels)
    fits = array.ndim == 3 and array.shape[2] in (3, 4) and array.dtype == np.uint8
    if not fits or min(array.shape[:2]) < 1:
        return None
    height, width = array.shape[:2]
    for size in SIZES:
        scale = max(height, width) / size
        rows, columns = (max(1, round(side / scale)) for side in (height, width))
        shapes = _squares(_sampled(array[..., :3], rows, columns), SIDE / size)
        if len(shapes) <= MOST_SQUARES:
            square = SIDE / size
            return StateDrawing(
                title=title, width=columns * square, height=rows * square, shapes=tuple(shapes)
            )
    return None


def grid(text: str, *, title: str) -> StateDrawing | None:
    """Return a drawing of a text of single characters in rows and columns; None for other text."""
    if not _GRID.match(text):
        return None
    rows = [line.split(" ") for line in text.split("\n")]
    if len({len(row) for row in rows}) > 1:
        return None
    return board(rows, title=title, discs=DISCS)


def _sampled(array: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
    """Return [rows, columns, 3] colors of the middles of the squares, rounded to few levels."""
    down = ((np.arange(rows) + 0.5) * array.shape[0] / rows).astype(int)
    across = ((np.arange(columns) + 0.5) * array.shape[1] / columns).astype(int)
    step = 255 / (COLORS - 1)
    levels = np.round(array[down][:, across] / step) * step
    return levels.astype(np.uint8)


def _squares(colors: NDArray[np.uint8], side: float) -> list[Shape]:
    shapes = []
    for row, line in enumerate(colors):
        named = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in line]
        column = 0
        for color, equal in groupby(named):
            count = len(list(equal))
            shapes.append(
                Shape(
                    kind="rectangle",
                    x=column * side,
                    y=row * side,
                    width=count * side,
                    height=side,
                    color=color,
                    filled=True,
                )
            )
            column += count
    return shapes
