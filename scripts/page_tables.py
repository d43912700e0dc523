"""Tables of numbers in the Markdown pages: sections, rows and columns, and the numbers of a cell.

`table_pictures` reads these tables. A cell that cannot be read is an error of one line with page,
section, row and column.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

NUMBER = r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?: ?(?:%|points))?"
NUMBERS = rf"{NUMBER}(?:, {NUMBER})*"
CELL = re.compile(
    rf"(?:(?P<before>{NUMBERS}) → )?(?P<after>{NUMBERS})(?:: (?P<value>{NUMBER}))?"
    rf"(?: \((?P<low>{NUMBER}) to (?P<high>{NUMBER})\)| ± (?P<half>{NUMBER}))?"
)
"""Numbers of a cell, such as `12.5, 13.4 → 52.6, 46.7 %` or `+9.0 (-46.4 to 64.4)`."""
ABSENT = re.compile(r"[-\u2013\u2014]?|\([^()]*\)")
"""Text of a cell without a number: nothing, a dash, or a note in parentheses."""
HEADING = re.compile(r"(#+) (.*)")
CHILD = "\u2013 "
"""En dash at the beginning of the label of a row that belongs to the last row without one."""


class TableError(ValueError):
    """A table, or a cell of it, that cannot be read; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Numbers of a cell; an absent cell has none."""

    before: tuple[float, ...] = ()
    """[seeds] numbers on the left of an arrow; empty without an arrow."""
    after: tuple[float, ...] = ()
    """[seeds] numbers on the right of an arrow; all numbers if there is no arrow."""
    value: float = math.nan
    """Value that the cell gives after a colon, or the mean of `after`."""
    low: float = math.nan
    """Lower end of the interval; NaN if the cell has no interval."""
    high: float = math.nan
    """Upper end of the interval."""


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table of a page as plain text, without marks for bold or code."""

    place: str
    """Page and section, for errors."""
    rows: Sequence[str]
    """Labels of the rows; a row that belongs to another one is called `that label: own label`."""
    columns: Sequence[str]
    """Labels of the columns, without the one over the labels of the rows."""
    cells: Sequence[Sequence[str]]
    """[rows][columns] texts."""

    def row(self, starts: Sequence[str]) -> list[int]:
        """Return the indices of the rows with these labels, or else of rows that start with them.

        The rows that belong to a found row are left out.
        """
        return self._found("row", self.rows, starts)

    def column(self, starts: Sequence[str]) -> list[int]:
        """Return the indices of the columns with these labels, or else that start with them."""
        return self._found("column", self.columns, starts)

    def cell(self, row: int, column: int) -> Cell:
        """Return the numbers of a cell, or raise `TableError`."""
        text = self.cells[row][column]
        try:
            return read_cell(text)
        except TableError as error:
            raise self.error(row, column, str(error)) from None

    def error(self, row: int, column: int, reason: str) -> TableError:
        """Return an error that names the cell."""
        where = f"row '{self.rows[row]}', column '{self.columns[column]}'"
        return TableError(f"{self.place}, {where}: {reason}")

    def transposed(self) -> "PageTable":
        """Return the table with its columns as rows."""
        cells = list(zip(*self.cells, strict=True))
        return PageTable(place=self.place, rows=self.columns, columns=self.rows, cells=cells)

    def named(self, name: str) -> "PageTable":
        """Return the table with a name in front of the labels of its rows."""
        rows = [f"{name}: {label}" for label in self.rows]
        return PageTable(place=self.place, rows=rows, columns=self.columns, cells=self.cells)

    def _found(self, kind: str, labels: Sequence[str], starts: Sequence[str]) -> list[int]:
        found: list[int] = []
        for start in starts:
            same = [place for place, label in enumerate(labels) if label == start]
            if not same:
                like = [label for label in labels if label.startswith(start)]
                parents = tuple(f"{label}: " for label in like)
                same = [
                    place
                    for place, label in enumerate(labels)
                    if label in like and not label.startswith(parents)
                ]
            if not same:
                raise TableError(f"{self.place}: no {kind} starts with '{start}'")
            found += same
        return found


def read_cell(text: str) -> Cell:
    """Return the numbers of the plain text of a cell; raise `TableError` if it has another form."""
    text = text.replace("\u2212", "-").strip()
    if ABSENT.fullmatch(text):
        return Cell()
    found = CELL.fullmatch(text)
    if found is None:
        raise TableError(f"'{text}' is no number, 'a → b', 'x (low to high)' or dash")
    before, after = _numbers(found["before"]), _numbers(found["after"])
    (value,) = _numbers(found["value"]) or (sum(after) / len(after),)
    (low,), (high,) = (_numbers(found[end]) or (math.nan,) for end in ("low", "high"))
    for half in _numbers(found["half"]):
        low, high = value - half, value + half
    return Cell(before=before, after=after, value=value, low=low, high=high)


def _numbers(text: str | None) -> tuple[float, ...]:
    parts = re.sub(r" ?(%|points)", "", text).split(", ") if text else []
    return tuple(float(part.replace(",", "")) for part in parts)


def plain(text: str) -> str:
    """Return Markdown text without marks for bold, code and links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "").replace("`", "").strip()


def sections(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (heading, lines up to the next heading) of a page, without blocks of code."""
    heading, lines, code = "", list[str](), False
    for line in page.splitlines():
        fence = line.startswith("```")
        code ^= fence
        if code or fence:
            continue
        if found := HEADING.match(line):
            yield heading, lines
            heading, lines = plain(found[2]), []
        else:
            lines.append(line)
    yield heading, lines


def section_tables(lines: Sequence[str], place: str) -> list[PageTable]:
    """Return the tables of a section's lines."""
    blocks = groupby(lines, key=lambda line: line.startswith("|"))
    return [_table(list(block), place) for is_table, block in blocks if is_table]


def find_table(page: str, name: str, section: str, index: int) -> PageTable:
    """Return a table of a page.

    Args:
        page: Text of the page.
        name: Name of the page, for errors.
        section: Beginning of the heading of the section.
        index: Number of the table in this section, from 0.
    """
    found = [each for each in sections(page) if each[0].startswith(section)]
    if len(found) != 1:
        raise TableError(f"{name}: {len(found)} sections start with '{section}'")
    heading, lines = found[0]
    tables = section_tables(lines, f"{name}, '{heading}'")
    if index >= len(tables):
        raise TableError(f"{name}, '{heading}': has {len(tables)} tables, and not {index + 1}")
    return tables[index]


def _table(lines: Sequence[str], place: str) -> PageTable:
    """Return a table; columns of cells such as `0 / 95 / 5` are split by the names in the corner.

    A corner `won / drawn / lost in %` makes the columns `name: won`, `name: drawn`, `name: lost`.
    """
    texts = [[plain(part) for part in line.strip().strip("|").split("|")] for line in lines]
    (corner, *columns), rows = texts[0], texts[2:]
    for row in rows:
        if len(row) != len(texts[0]):
            raise TableError(f"{place}, row '{row[0]}': {len(row)} cells of {len(texts[0])}")
    names = re.match(r"\w+( / \w+)+", corner)
    cells = [row[1:] for row in rows]
    if names is not None:
        kinds = names[0].split(" / ")
        columns = [f"{column}: {kind}" for column in columns for kind in kinds]
        split = [[text.split(" / ") for text in row] for row in cells]
        for row, parted in zip(rows, split, strict=True):
            if any(len(parts) != len(kinds) for parts in parted):
                raise TableError(f"{place}, row '{row[0]}': a cell has not {len(kinds)} numbers")
        cells = [[part for parts in row for part in parts] for row in split]
    labels, parent = [], ""
    for row in rows:
        child = row[0].startswith(CHILD)
        parent = parent if child else row[0]
        labels.append(f"{parent}: {row[0].removeprefix(CHILD)}" if child else row[0])
    return PageTable(place=place, rows=labels, columns=columns, cells=cells)
