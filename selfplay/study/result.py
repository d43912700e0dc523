"""Result of a study: estimates, tables and drawings, as JSON and as text for a terminal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, TypeAlias

from selfplay.run.formatting import columns, counted, number
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
    terminal: int = 0
    """Largest number of columns on a terminal; 0: all. The page and the JSON have all columns."""

    def shown(self) -> list[list[str]]:
        """Return the cells as text."""
        return [[cell(value) for value in row] for row in self.rows]

    def _names(self) -> list[str]:
        """Return the columns; one whose name occurred before has a number, as in "uses (2)"."""
        names = list[str]()
        for column in self.columns:
            tries = chain([column], (f"{column} ({number})" for number in count(2)))
            names.append(next(name for name in tries if name not in names))
        return names

    def to_json(self) -> dict[str, Any]:
        """Return plain data: each row by its columns; values that are not finite are null."""
        return {
            "title": self.title,
            "rows": [
                {
                    name: None if isinstance(value, float) and not math.isfinite(value) else value
                    for name, value in zip(self._names(), row, strict=True)
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
    equal: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Metric that is equal in all runs to the names of its estimates. A terminal does not show
    these rows, and the page folds them away."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further keys with their values, which only the JSON has."""

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
        differing, _ = self.by_equality()
        if differing:
            blocks.append(columns(estimate_rows(differing)))
        for table in self.tables:
            rows = [row for row in table.shown() if row[0] not in self.equal]
            blocks.append(f"{table.title}\n{_narrow([list(table.columns), *rows], table.terminal)}")
        if self.equal:
            blocks.append(
                f"note: {self.equal_text()}, and left out here; the page and --json have them"
            )
        blocks += [f"note: {note}" for note in self.notes]
        return "\n\n".join(blocks)

    def by_equality(self) -> tuple[list[Estimate], list[Estimate]]:
        """Return the estimates of metrics that differ between runs, and those of equal metrics."""
        hidden = set(chain(*self.equal.values()))
        kept = [each for each in self.estimates if each.name not in hidden]
        return kept, [each for each in self.estimates if each.name in hidden]

    def equal_text(self) -> str:
        """Return the number of metrics that are equal in all runs, in words."""
        count = len(self.equal)
        return f"{counted(count, 'metric')} {'is' if count == 1 else 'are'} equal in all runs"


def _narrow(rows: Sequence[Sequence[str]], most: int) -> str:
    """Return the first `most` columns as text, and the number of the others; all columns if 0."""
    left_out = len(rows[0]) - most
    if not most or left_out < 1:
        return columns(rows)
    more = f"({counted(left_out, 'more column')}: on the page and in --json)"
    return f"{columns([row[:most] for row in rows])}\n{more}"


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
