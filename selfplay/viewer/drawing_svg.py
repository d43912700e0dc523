"""SVG of an arena's drawings. All words are escaped, and no markup comes from the drawing."""

from markupsafe import Markup, escape

from selfplay.drawing import Shape, StateDrawing
from selfplay.run.report.html import visible

LONGEST_WORDS = 80
"""Largest number of characters of one text."""
LONGEST_TITLE = 300
"""Largest number of characters of a title."""


def svg_of(drawing: StateDrawing) -> Markup:
    """Return a drawing as inline SVG."""
    title = escape(visible(drawing.title[:LONGEST_TITLE]))
    shapes = Markup("").join(map(_shape, drawing.shapes))
    width, height = _number(drawing.width + 2), _number(drawing.height + 2)
    return Markup(
        '<svg class="drawing" role="img" viewBox="-1 -1 {} {}" width="{}" height="{}">'
        "<title>{}</title>{}</svg>"
    ).format(width, height, width, height, title, shapes)


def _shape(shape: Shape) -> Markup:
    x, y = _number(shape.x), _number(shape.y)
    paint = _paint(shape)
    if shape.kind == "text":
        words = escape(visible(shape.text[:LONGEST_WORDS]))
        return Markup('<text x="{}" y="{}" {}>{}</text>').format(x, y, paint, words)
    if shape.kind == "rectangle":
        sides = Markup('width="{}" height="{}"').format(*map(_size, (shape.width, shape.height)))
        return Markup('<rect x="{}" y="{}" {} {}/>').format(x, y, sides, paint)
    if shape.kind == "ellipse":
        return Markup('<ellipse cx="{}" cy="{}" rx="{}" ry="{}" {}/>').format(
            _number(shape.x + shape.width / 2),
            _number(shape.y + shape.height / 2),
            _size(shape.width / 2),
            _size(shape.height / 2),
            paint,
        )
    ends = _number(shape.x + shape.width), _number(shape.y + shape.height)
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" {}/>').format(x, y, *ends, paint)


def _paint(shape: Shape) -> Markup:
    """Return the attributes of color; `StateDrawing` allows only names and "#rrggbb"."""
    fills = shape.filled or shape.kind == "text"
    if shape.color.startswith("#"):
        return Markup('{}="{}"').format("fill" if fills else "stroke", shape.color)
    name = {"ink": "text", "quiet": "ink", "line": "grid"}.get(shape.color, shape.color)
    return Markup('class="{}-{}"').format("fill" if fills else "stroke", name)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _size(value: float) -> str:
    return _number(max(value, 0.0))
