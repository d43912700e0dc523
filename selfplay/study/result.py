"""Result of a study: estimates, tables and drawings, as JSON and as text for a terminal."""

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
    """A table of a result. Measures make it; the page and the terminal show it."""

    title: str
    """Title in one line."""
    columns: Sequence[str]
    """Names of the columns; the first column names the rows."""
    rows: Sequence[Sequence[Cell]]
    """Rows, each with one cell per column."""

    def shown(self) -> list[list[str]]:
        """Return the cells as text."""
        return [[cell(value) for value in row] for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """Return plain data: each row by its columns; values that are not finite are null."""
        return {
            "title": self.title,
            "rows": [
                {
                    name: None if isinstance(value, float) and not math.isfinite(value) else value
                    for name, value in zip(self.columns, row, strict=True)
                }
                for row in self.rows
            ],
        }


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a study. Every measure makes one; the page, JSON and the terminal show it."""

    measure: str
    """Name of the measure, and of its files."""
    title: str
    """Title in one line."""
    definition: str
    """Meaning of the estimates, in one or two sentences."""
    estimates: Sequence[Estimate] = ()
    """Estimates with their intervals."""
    tables: Sequence[Table] = ()
    """Tables with the details."""
    drawings: Sequence[Drawing] = ()
    """Pictures of the estimates."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the measurement."""
    notes: Sequence[str] = ()
    """Notes that readers of the result need."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the JSON alone."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
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
        """Return the tables as text for a terminal."""
        blocks = [self.title]
        if self.estimates:
            blocks.append(columns(estimate_rows(self.estimates)))
        for table in self.tables:
            blocks.append(f"{table.title}\n{columns([list(table.columns), *table.shown()])}")
        blocks += [f"note: {note}" for note in self.notes]
        return "\n\n".join(blocks)


HEAD = ["", "value", "95 % interval", "of", "direction", "p", ""]
"""Columns of the table of estimates."""


def estimate_rows(estimates: Sequence[Estimate]) -> list[list[str]]:
    """Return the rows of the table of estimates, its head first, without empty columns."""
    rows = [line(each) for each in estimates]
    kept = [place for place in range(len(HEAD)) if any(row[place] for row in rows)]
    return [[row[place] for place in kept] for row in [HEAD, *rows]]


def line(estimate: Estimate) -> list[str]:
    """Return the cells of an estimate's row."""
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
    """Return a value of a table as text."""
    if isinstance(value, bool | str):
        return str(value)
    return "-" if value is None else number(float(value))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text, each column as wide as its widest cell."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
