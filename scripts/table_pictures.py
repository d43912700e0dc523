"""Pictures of tables: each kind names rows and columns, and makes a drawing of their numbers.

`game_pictures`, `cooperation_pictures`, `language_pictures` and `bakeoff_pictures` list them, and
`draw_tables` writes them.

A picture names rows and columns by the beginnings of their labels. A cell that it does not name is
not read.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
from page_tables import PageTable, TableError, find_table

from selfplay.study.plots import CurvePlot, DotPlot, Drawing, IntervalPlot, MatrixPlot
from selfplay.study.stats.bootstrap import Estimate

Names = Mapping[str, str] | Sequence[str]
"""Drawn name to the beginning of a label, or the beginnings alone, which are then drawn; an empty
beginning is the drawn name. Without names, all labels are drawn."""
Side = Literal["before", "after", "change"]
"""Numbers on the left of the arrow, those on the right, or right minus left."""


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """A table of a page."""

    section: str
    """Beginning of the heading of the section."""
    table: int = 0
    """Number of the table in the section, from 0."""
    name: str = ""
    """Name in front of the labels of the rows; empty: none."""

    def read(self, page: str, page_name: str) -> PageTable:
        """Return the table in the text of a page."""
        found = find_table(page, page_name, self.section, self.table)
        return found.named(self.name) if self.name else found


@dataclass(frozen=True, kw_only=True)
class SeedValues:
    """The numbers of a set of dots in each row: one for each seed."""

    columns: Sequence[str]
    """Beginnings of the labels of the columns; one column may have the numbers of all seeds."""
    side: Side = "after"


SEED = ("seed ",)
"""Beginning of the labels of columns that are seeds."""
TRAINED = {
    "before training": SeedValues(columns=SEED, side="before"),
    "after training": SeedValues(columns=SEED),
}
"""Sets of dots of cells `before → after`, with a column for each seed."""
RIGHT = "held-out questions answered right, %"
"""Label of an axis."""


@dataclass(frozen=True, kw_only=True)
class TablePicture:
    """A picture of numbers of one table, or of tables with the same columns."""

    name: str
    """Name of the SVG file, without its suffix."""
    title: str
    label: str
    """Label of the axis of values, with the unit."""
    sources: Sequence[TableSource]
    """Tables; the rows of the second one follow those of the first."""
    rows: Names = ()
    transposed: bool = False
    """True: the columns of the table are the rows of the picture."""

    def drawing(self, page: str, page_name: str) -> Drawing:
        """Return the drawing of the numbers in the text of a page."""
        first, *others = (source.read(page, page_name) for source in self.sources)
        for other in others:
            if other.columns != first.columns:
                raise TableError(f"{other.place}: the columns differ from those of {first.place}")
        rows = [*first.rows, *chain.from_iterable(other.rows for other in others)]
        cells = [*first.cells, *chain.from_iterable(other.cells for other in others)]
        table = PageTable(place=first.place, rows=rows, columns=first.columns, cells=cells)
        return self.drawn(table.transposed() if self.transposed else table)

    def drawn(self, table: PageTable) -> Drawing:
        """Return the drawing of a table."""
        raise NotImplementedError

    def row_names(self, table: PageTable) -> Iterator[tuple[str, int]]:
        """Yield drawn name and index of each row."""
        yield from _named(self.rows, table, table.rows, table.row)


@dataclass(frozen=True, kw_only=True)
class SeedDots(TablePicture):
    """A dot for each seed and a bar at their mean, in sets such as before and after."""

    sets: Mapping[str, SeedValues]
    """Name of the set to its numbers."""
    null: float | None = None

    def drawn(self, table: PageTable) -> Drawing:
        """Return the dots."""
        rows = dict(self.row_names(table))
        sets = {
            name: [_seeds(table, row, values) for row in rows.values()]
            for name, values in self.sets.items()
        }
        for place, name in enumerate(rows):
            if not any(values[place] for values in sets.values()):
                raise TableError(f"{table.place}, row '{name}': has no number")
        return DotPlot(
            title=self.title, rows=list(rows), sets=sets, label=self.label, null=self.null
        )


@dataclass(frozen=True, kw_only=True)
class CellIntervals(TablePicture):
    """The intervals that cells such as `0.61 (0.43 to 0.80)` give, one per row of the picture."""

    columns: Names
    """Columns of the cells. If there are several, each row of the table gives several intervals."""
    null: float | None = None

    def drawn(self, table: PageTable) -> Drawing:
        """Return the intervals; cells without a number are left out."""
        columns = list(_named(self.columns, table, table.columns, table.column))
        found = []
        for name, row in self.row_names(table):
            for own, column in columns:
                cell = table.cell(row, column)
                if len(cell.after) > 1 and math.isnan(cell.low):
                    raise table.error(row, column, "several numbers without an interval")
                shown = f"{name}: {own}" if len(columns) > 1 else name
                if cell.after:
                    found.append(
                        Estimate(name=shown, value=cell.value, low=cell.low, high=cell.high)
                    )
        return IntervalPlot(title=self.title, estimates=found, label=self.label, null=self.null)


@dataclass(frozen=True, kw_only=True)
class StepCurves(TablePicture):
    """Curves of a mean over seeds, with a band from the lowest to the highest seed.

    Columns are steps, whose numbers are in their labels, and each row is a seed. A mean is drawn at
    the steps at which every seed of its series has a number.
    """

    series: Mapping[str, Sequence[str]]
    """Name of a series to the beginnings of the labels of its rows."""
    columns: Sequence[str] = ("",)
    """Beginnings of the labels of the columns; by default all columns."""

    def drawn(self, table: PageTable) -> Drawing:
        """Return the curves."""
        columns = table.column(self.columns)
        means, bands = {}, {}
        for name, starts in self.series.items():
            rows = table.row(starts)
            seeds = np.array([[table.cell(row, place).value for place in columns] for row in rows])
            means[name] = seeds.mean(axis=0).tolist()  # NaN where a seed has no number
            if len(rows) > 1:
                bands[name] = (seeds.min(axis=0).tolist(), seeds.max(axis=0).tolist())
        x = [_step(table, column) for column in columns]
        return CurvePlot(title=self.title, x=x, series=means, bands=bands, label=self.label)


@dataclass(frozen=True, kw_only=True)
class CellMatrix(TablePicture):
    """A matrix of the means of cells."""

    columns: Names
    side: Side = "after"

    def drawn(self, table: PageTable) -> Drawing:
        """Return the matrix; cells without a number have a dash."""
        rows = dict(self.row_names(table))
        columns = dict(_named(self.columns, table, table.columns, table.column))
        values = [
            [_mean(_side(table, row, column, self.side)) for column in columns.values()]
            for row in rows.values()
        ]
        title = f"{self.title}, {self.label}"
        return MatrixPlot(title=title, rows=list(rows), columns=list(columns), values=values)


def _named(
    names: Names,
    table: PageTable,
    labels: Sequence[str],
    find: Callable[[Sequence[str]], list[int]],
) -> Iterator[tuple[str, int]]:
    """Yield drawn name and index of each row or column; each beginning must fit one label."""
    if not names:
        yield from ((label, place) for place, label in enumerate(labels))
        return
    for name, start in (names if isinstance(names, Mapping) else dict.fromkeys(names, "")).items():
        found = find([start or name])
        if len(found) != 1:
            reason = f"{len(found)} labels start with '{start or name}', and not one"
            raise TableError(f"{table.place}: {reason}")
        yield name, found[0]


def _step(table: PageTable, column: int) -> float:
    """Return the first number in the label of a column."""
    found = re.search(r"\d+", table.columns[column])
    if found is None:
        raise TableError(f"{table.place}: no step in the label '{table.columns[column]}'")
    return float(found[0])


def _seeds(table: PageTable, row: int, values: SeedValues) -> list[float]:
    """Return the numbers of a set in a row."""
    columns = table.column(values.columns)
    return [each for column in columns for each in _side(table, row, column, values.side)]


def _side(table: PageTable, row: int, column: int, side: Side) -> Sequence[float]:
    """Return the numbers of one side of a cell; none if the cell is absent."""
    cell = table.cell(row, column)
    if side == "after" or not cell.after:
        return cell.after
    if len(cell.before) != len(cell.after):
        raise table.error(row, column, f"{len(cell.before)} numbers before {len(cell.after)}")
    if side == "before":
        return cell.before
    return [new - old for old, new in zip(cell.before, cell.after, strict=True)]


def _mean(values: Sequence[float]) -> float:
    """Return the mean, or NaN without values."""
    return sum(values) / len(values) if values else math.nan
