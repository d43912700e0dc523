"""Drawings of an arena's state: a few kinds of shapes, as plain data.

`Arena.draw` returns a `StateDrawing`, and pages turn it into a picture. It holds no markup, so that
the drawing of a strange arena can be shown.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

Length: TypeAlias = Annotated[float, Field(ge=-10_000, le=10_000, allow_inf_nan=False)]
"""A coordinate or a size, in units of the drawing, whose upper left corner is (0, 0)."""
Color: TypeAlias = Annotated[str, Field(pattern=r"^(ink|quiet|line|[1-8]|#[0-9a-f]{6})$")]
"""A color of the page (ink: text; quiet: pale text; line; 1 to 8: the seats), or "#rrggbb"."""

SQUARE = 40.0
"""Side of a square of a board."""
LETTER = 7.5
"""Width of a letter."""
MOST_SHAPES = 6_000
"""Largest number of shapes of a drawing that a page shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """One shape of a drawing."""

    kind: Literal["line", "rectangle", "ellipse", "text"]
    """Kind of the shape. A line goes from (x, y) to (x + width, y + height)."""
    x: Length
    """Left edge; the middle of a text."""
    y: Length
    """Upper edge; the middle of a text."""
    width: Length = 0.0
    """Width of the shape."""
    height: Length = 0.0
    """Height of the shape."""
    text: str = ""
    """Words of a text."""
    color: Color = "ink"
    """Color of the stroke, or of the whole shape if it is filled."""
    filled: bool = False
    """True for a filled shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateDrawing:
    """A picture of an arena's state. `Arena.draw` makes it; the pages show it."""

    title: str
    """Description in words, also for readers who do not see the picture."""
    width: Annotated[float, Field(gt=0, le=10_000)]
    """Width of the picture, in units of the drawing."""
    height: Annotated[float, Field(gt=0, le=10_000)]
    """Height of the picture, in units of the drawing."""
    shapes: tuple[Shape, ...]
    """The shapes, the lowest first."""


def board(
    rows: Sequence[Sequence[str]],
    *,
    title: str,
    free: str = ".",
    discs: Mapping[str, str] | None = None,
) -> StateDrawing:
    """Return a board of squares.

    Args:
        rows: Text of each square, row by row.
        title: Description of the drawing.
        free: Text of an empty square.
        discs: Text to the color of a disc that is drawn in place of the text.
    """
    columns = max(map(len, rows), default=0)
    shapes: list[Shape] = []
    for row, line in enumerate(rows):
        for column, text in enumerate(line):
            x, y = column * SQUARE, row * SQUARE
            shapes.append(
                Shape(kind="rectangle", x=x, y=y, width=SQUARE, height=SQUARE, color="line")
            )
            color = (discs or {}).get(text)
            if color is not None:
                inner = SQUARE - 10
                shapes.append(
                    Shape(
                        kind="ellipse",
                        x=x + 5,
                        y=y + 5,
                        width=inner,
                        height=inner,
                        color=color,
                        filled=True,
                    )
                )
            elif text != free:
                shapes.append(Shape(kind="text", x=x + SQUARE / 2, y=y + SQUARE / 2, text=text))
    return StateDrawing(
        title=title,
        width=max(columns, 1) * SQUARE,
        height=max(len(rows), 1) * SQUARE,
        shapes=tuple(shapes),
    )


def cards(
    dealt: Sequence[tuple[str, str]], *, title: str, lines: Sequence[str] = ()
) -> StateDrawing:
    """Return cards in a row, each with its owner above, and lines of text below.

    Args:
        dealt: (owner, card); an empty card lies face down.
        title: Description of the drawing.
        lines: Text below the cards.
    """
    wide = max([60.0, *(LETTER * len(owner) + 12 for owner, _ in dealt)])
    shapes: list[Shape] = []
    for place, (owner, card) in enumerate(dealt):
        middle = (place + 0.5) * wide
        shapes += [
            Shape(kind="text", x=middle, y=10, text=owner, color="quiet"),
            Shape(kind="rectangle", x=middle - 20, y=24, width=40, height=56, color="quiet"),
            Shape(kind="text", x=middle, y=52, text=card or "?", color="ink" if card else "quiet"),
        ]
    width = max(wide * len(dealt), *(LETTER * len(line) + 12 for line in ("", *lines)))
    shapes += [
        Shape(kind="text", x=width / 2, y=98 + 20 * place, text=line)
        for place, line in enumerate(lines)
    ]
    return StateDrawing(
        title=title, width=width, height=90 + 20.0 * len(lines), shapes=tuple(shapes)
    )


def table(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[str, str], str],
    *,
    title: str,
    marked: Set[tuple[str, str]] = frozenset(),
) -> StateDrawing:
    """Return a table.

    Args:
        rows: Names of the rows.
        columns: Names of the columns.
        cells: Text by (row, column).
        title: Description of the drawing.
        marked: Cells with a frame.
    """
    side = LETTER * max(map(len, ("", *rows))) + 12
    wide = LETTER * max(map(len, ("", *columns, *cells.values()))) + 16
    shapes = [
        Shape(kind="text", x=side + (place + 0.5) * wide, y=15, text=name, color="quiet")
        for place, name in enumerate(columns)
    ]
    shapes += [
        Shape(kind="text", x=side / 2, y=30 * place + 45, text=name, color="quiet")
        for place, name in enumerate(rows)
    ]
    for (row, name), (column, other) in product(enumerate(rows), enumerate(columns)):
        x, y = side + column * wide, 30.0 * row + 30
        found = (name, other) in marked
        if found:
            shapes.append(
                Shape(kind="rectangle", x=x + 2, y=y + 2, width=wide - 4, height=26, color="1")
            )
        shapes.append(
            Shape(kind="text", x=x + wide / 2, y=y + 15, text=cells.get((name, other), ""))
        )
    return StateDrawing(
        title=title,
        width=side + wide * len(columns),
        height=30.0 * (len(rows) + 1),
        shapes=tuple(shapes),
    )
