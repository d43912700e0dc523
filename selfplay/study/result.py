"""What a study found: estimates, tables and drawings, as JSON and as text for a terminal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from selfplay.run.formatting import number
from selfplay.study.plots import Drawing
from selfplay.study.stats.bootstrap import Estimate

Cell: TypeAlias = str | float | int | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Figures in rows and columns."""

    title: str
    """What they are."""
    columns: Sequence[str]
    """Names of the columns; the first names the rows."""
    rows: Sequence[Sequence[Cell]]
    """Rows of as many cells."""

    def shown(self) -> list[list[str]]:
        """The cells as they are read."""
        return [[cell(value) for value in row] for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """As plain data: each row by its columns' names; NaN is null."""
        return {
            "title": self.title,
            "rows": [
                {
                    name: None if isinstance(value, float) and value != value else value
                    for name, value in zip(self.columns, row, strict=True)
                }
                for row in self.rows
            ],
        }


@dataclass(frozen=True, kw_only=True)
class Result:
    """A study's answer."""

    measure: str
    """Which measure."""
    title: str
    """What was asked, in a line."""
    definition: str
    """What the figures mean, in a sentence or two."""
    estimates: Sequence[Estimate] = ()
    """The figures with their intervals."""
    tables: Sequence[Table] = ()
    """What stands behind them."""
    drawings: Sequence[Drawing] = ()
    """The same as pictures."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """How it was measured."""
    notes: Sequence[str] = ()
    """What must be known to read it."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What JSON alone has."""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "measure": self.measure,
            "title": self.title,
            "definition": self.definition,
            "estimates": [each.to_json() for each in self.estimates],
            "tables": [each.to_json() for each in self.tables],
            "params": dict(self.params),
            "notes": list(self.notes),
            **self.more,
        }

    def to_text(self) -> str:
        """Tables for a terminal."""
        blocks = [self.title]
        if self.estimates:
            blocks.append(columns(figures(self.estimates)))
        for table in self.tables:
            blocks.append(f"{table.title}\n{columns([list(table.columns), *table.shown()])}")
        blocks += [f"note: {note}" for note in self.notes]
        return "\n\n".join(blocks)


HEAD = ["", "value", "95 % interval", "of", "direction", "p", ""]
"""Columns of the table of estimates."""


def figures(estimates: Sequence[Estimate]) -> list[list[str]]:
    """The table of estimates, its head first, without the columns in which nothing stands."""
    rows = [line(each) for each in estimates]
    kept = [place for place in range(len(HEAD)) if any(row[place] for row in rows)]
    return [[row[place] for place in kept] for row in [HEAD, *rows]]


def line(estimate: Estimate) -> list[str]:
    """An estimate as the cells of a row."""
    interval = ""
    if estimate.low == estimate.low:
        bounded = math.isfinite(estimate.high)
        least = number(estimate.low)
        interval = f"{least} to {number(estimate.high)}" if bounded else f"at least {least}"
    return [
        estimate.name,
        number(estimate.value),
        interval,
        f"{estimate.count} x {estimate.unit}" if estimate.unit else str(estimate.count or ""),
        estimate.direction.replace("_", " "),
        "" if estimate.p is None else number(estimate.p),
        estimate.notes,
    ]


def cell(value: Cell) -> str:
    """A value of a table as it is read."""
    if isinstance(value, bool | str):
        return str(value)
    return "-" if value is None else number(float(value))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as text, each column as wide as its widest cell."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
