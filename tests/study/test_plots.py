"""Pictures for print: three files for each picture, labels with units, signed colours."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from selfplay.run.report.charts import SERIES
from selfplay.study import figure_files
from selfplay.study.figure_files import COLUMN_WIDTH, SMALLEST_FONT, TEXT_WIDTH, save
from selfplay.study.plots import (
    CurvePlot,
    DotPlot,
    Drawing,
    IntervalPlot,
    MatrixPlot,
    inline,
)
from selfplay.study.stats.bootstrap import Estimate

GAIN = Estimate(name="gain", value=0.5, low=0.25, high=0.75)
CURVE = CurvePlot(
    title="Curve",
    x=[0, 10],
    series={"a": [0.0, 1.0], "b": [1.0, math.nan]},
    bands={"a": ([0.0, 0.5], [0.5, 1.5])},
    label="entropy, nats",
)
INTERVALS = IntervalPlot(title="Intervals", estimates=[GAIN], label="gain in accuracy", null=0.0)
DOTS = DotPlot(title="Dots", rows=["m"], sets={"s": [[1.0, 2.0]]}, label="value")
MATRIX = MatrixPlot(title="Matrix", rows=["a", "b"], columns=["x"], values=[[-1.0], [0.5]])


def test_each_picture_has_its_own_files_which_are_always_the_same(tmp_path: Path) -> None:
    first = save([CURVE, MATRIX], tmp_path, "m")
    assert [path.name for path in first] == [
        *("m-1.svg", "m-1.png", "m-1.pdf", "m-2.svg", "m-2.png", "m-2.pdf"),
    ]
    contents = [path.read_bytes() for path in first]
    assert [data[:4] for data in contents[1:3]] == [b"\x89PNG", b"%PDF"]
    assert [path.read_bytes() for path in save([CURVE, MATRIX], tmp_path, "m")] == contents
    assert [path.name for path in save([CURVE], tmp_path, "n")] == ["n.svg", "n.png", "n.pdf"]
    assert save([], tmp_path, "none") == []


@pytest.mark.parametrize(
    ("drawing", "horizontal", "vertical"),
    [
        (CURVE, "step", "entropy, nats"),
        (INTERVALS, "gain in accuracy", ""),
        (DOTS, "value", ""),
    ],
)
def test_axes_have_labels_with_units(drawing: Drawing, horizontal: str, vertical: str) -> None:
    canvas = Figure(figsize=drawing.size(), layout="constrained")
    axes = canvas.add_subplot()
    drawing.paint(axes)
    assert (axes.get_xlabel(), axes.get_ylabel()) == (horizontal, vertical)
    canvas.draw_without_rendering()
    box, whole = axes.get_tightbbox(), canvas.bbox
    assert box is not None and box.x0 >= 0 and box.y0 >= 0  # no label is cut off
    assert box.x1 <= whole.x1 and box.y1 <= whole.y1
    assert horizontal.partition(",")[0] in inline(drawing)


def test_signed_values_have_two_colours_and_0_has_none() -> None:
    shades = MATRIX.shades()
    assert shades(-1.0) == (SERIES[1], 0.56) and shades(0.5) == (SERIES[0], 0.28)
    assert shades(0.0)[1] == 0 and shades(-0.5)[1] == shades(0.5)[1]


def test_losses_alone_are_darkest_where_they_are_largest() -> None:
    losses = MatrixPlot(title="", rows=["a"], columns=["x", "y"], values=[[-0.1, -0.4]])
    assert losses.shades()(-0.4) == (SERIES[1], 0.56)
    assert losses.shades()(-0.1) == (SERIES[1], pytest.approx(0.14))


def test_a_long_label_is_not_cut_and_a_legend_covers_nothing(tmp_path: Path) -> None:
    label = "effect: nats, or difference of probabilities"
    names = {f"series {n}": [0.0, 1.0] for n in range(8)}
    curves = CurvePlot(title="t", x=[0, 1], series=names, bands={}, label=label)
    (svg, *_) = save([curves], tmp_path, "c")
    text = svg.read_text()
    assert all(word in text for word in ("probabilities", "series 0", "series 7", "<text"))


def test_files_of_earlier_pictures_are_removed(tmp_path: Path) -> None:
    save([CURVE, MATRIX], tmp_path, "m")
    (tmp_path / "m-notes.svg").write_text("kept")
    save([CURVE], tmp_path, "m")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m-notes.svg", "m.pdf", "m.png", "m.svg"]


def test_values_of_one_sign_have_one_colour() -> None:
    rates = MatrixPlot(title="", rows=["a"], columns=["x", "y"], values=[[0.25, 0.75]])
    assert rates.shades()(0.25) == (SERIES[0], 0.06)
    assert rates.shades()(0.75) == (SERIES[0], pytest.approx(0.56))
    same = MatrixPlot(title="", rows=["a"], columns=["x"], values=[[0.5]])
    assert same.shades()(0.5) == (SERIES[0], pytest.approx(0.31))


def test_a_band_and_a_missing_value_are_drawn(tmp_path: Path) -> None:
    (svg, *_) = save([CURVE], tmp_path, "c")
    assert "nan" not in svg.read_text().lower()


WIDE = MatrixPlot(
    title="A title of many words that does not fit into one line of a picture of this width " * 2,
    rows=["a", "b"],
    columns=[f"player {number}" for number in range(14)],
    values=[[0.5] * 14, [-0.5] * 14],
)
LONG = CurvePlot(
    title="A curve whose title is longer than one column of a paper is wide, so it has two lines",
    x=[0, 1],
    series={f"a series with a long name, number {n}": [0.0, 1.0] for n in range(3)},
    bands={},
    label="pay per game",
)


@pytest.mark.parametrize(
    ("drawing", "width"),
    [
        (CURVE, COLUMN_WIDTH),
        (LONG, COLUMN_WIDTH),
        (MATRIX, COLUMN_WIDTH),
        (INTERVALS, TEXT_WIDTH),
        (DOTS, TEXT_WIDTH),
        (WIDE, TEXT_WIDTH),
    ],
)
def test_pictures_for_print_are_as_wide_as_one_or_both_columns(
    tmp_path: Path, drawing: Drawing, width: float
) -> None:
    svg, *_ = save([drawing], tmp_path, "p")
    found = re.search(r'width="([\d.]+)pt"', svg.read_text())
    assert found is not None and float(found[1]) / 72 == pytest.approx(width)
    sizes = {float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", svg.read_text())}
    assert sizes and min(sizes) >= SMALLEST_FONT - 0.1


def test_nothing_is_cut_off_in_print(monkeypatch: pytest.MonkeyPatch) -> None:
    canvases: list[Figure] = []
    colour = figure_files._print_colours

    def keep(canvas: Figure) -> None:
        colour(canvas)
        canvases.append(canvas)

    monkeypatch.setattr(figure_files, "_print_colours", keep)
    for drawing in (CURVE, LONG, INTERVALS, DOTS, WIDE):
        assert len(list(figure_files.printed(drawing))) == 3
    for canvas in canvases:
        canvas.draw_without_rendering()
        box, whole = canvas.get_tightbbox(), canvas.get_size_inches()
        assert box.x0 >= -0.02 and box.y0 >= -0.02
        assert box.x1 <= whole[0] + 0.02 and box.y1 <= whole[1] + 0.02


def _lines(drawing: CurvePlot) -> list[list[float]]:
    axes = Figure().add_subplot()
    drawing.paint(axes)
    return [np.asarray(line.get_ydata(), dtype=float).tolist() for line in axes.lines]


def test_a_short_line_passes_over_missing_values_and_a_long_one_does_not() -> None:
    short = CurvePlot(
        title="t", x=[0, 1, 2], series={"a": [0.0, math.nan, 1.0]}, bands={}, label="l"
    )
    assert _lines(short) == [[0.0, 1.0]]
    values = [math.nan if n == 5 else 1.0 for n in range(40)]
    long = CurvePlot(title="t", x=list(range(40)), series={"a": values}, bands={}, label="l")
    assert math.isnan(_lines(long)[0][5])


def test_fractions_are_labelled_in_per_cent(tmp_path: Path) -> None:
    curve = CurvePlot(
        title="t", x=[0, 1], series={"a": [0.25, 0.75]}, bands={}, label="l", percent=True
    )
    (svg, *_) = save([curve], tmp_path, "c")
    assert re.search(r">[1-9]\d%<", svg.read_text())
