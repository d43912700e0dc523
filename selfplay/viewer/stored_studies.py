"""Studies that `selfplay study` wrote into a run folder, read as data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError

from selfplay.errors import RunError
from selfplay.run.formatting import number
from selfplay.run.record_reader import DIGITS, decode
from selfplay.run.report.charts import Chart, Series
from selfplay.run.run_folder import STUDIES
from selfplay.run.untrusted import open_regular

LARGEST = 20_000_000
"""Largest number of bytes of a study's file."""
MOST_STUDIES = 50
"""Largest number of studies of a run that are read."""
MOST_ROWS = 500
"""Largest number of rows of a table on a page."""
MOST_COLUMNS = 40
"""Largest number of columns of a table on a page."""

_Cell: TypeAlias = bool | int | float | str | None


@dataclass(frozen=True, kw_only=True)
class StoredEstimate:
    """An estimate with its interval."""

    name: str
    """Name of the estimated quantity."""
    value: float | None
    """The estimate; None if it is not a finite number."""
    ci_low: float | None = None
    """Lower end of the interval; None without one."""
    ci_high: float | None = None
    """Upper end of the interval; None without an interval, or if the interval has no upper end."""
    n: int = 0
    """Number of independent units that the interval is computed from."""
    unit_of_resampling: str = ""
    """Name of such a unit, for example episode."""
    notes: str = ""
    """Further notes that readers need."""

    @property
    def interval(self) -> str:
        """The interval as text; empty without one."""
        if self.ci_low is None:
            return ""
        low = number(self.ci_low)
        return f"at least {low}" if self.ci_high is None else f"{low} to {number(self.ci_high)}"


@dataclass(frozen=True, kw_only=True)
class StoredTable:
    """A table of a study."""

    title: str
    """Title of the table."""
    rows: list[dict[str, _Cell]] = field(default_factory=list)
    """Rows, each from the name of a column to a cell."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns, at most `MOST_COLUMNS`."""
        return list(dict.fromkeys(key for row in self.rows for key in row))[:MOST_COLUMNS]

    def shown(self) -> list[list[str]]:
        """Return the cells of the first `MOST_ROWS` rows as text."""
        columns = self.columns
        return [[_text(row.get(name)) for name in columns] for row in self.rows[:MOST_ROWS]]

    def charts(self) -> list[Chart]:
        """Return a curve over the checkpoints for each numeric column.

        Empty if the table has no column `step` with two different steps or more, each in one row.
        """
        steps = [_step(row.get("step")) for row in self.rows]
        if len(steps) < 2 or None in steps or len(set(steps)) < len(steps):
            return []
        made = []
        for name in self.columns:
            points = sorted(
                (step, value)
                for step, row in zip(steps, self.rows, strict=True)
                if step is not None and (value := _number(row.get(name))) is not None
            )
            if name == "step" or len(points) < 2:
                continue
            series = Series(
                label=name,
                steps=tuple(step for step, _ in points),
                values=tuple(value for _, value in points),
                latest=number(points[-1][1]),
            )
            made.append(Chart(title=f"{name}, by step", series=(series,), omitted=0, share=False))
        return made


@dataclass(frozen=True, kw_only=True)
class StoredStudy:
    """One study of a run. The pages and their JSON show it."""

    measure: str
    """Name of the measure."""
    title: str
    """Title in one line."""
    definition: str = ""
    """Meaning of the estimates."""
    estimates: list[StoredEstimate] = field(default_factory=list)
    """Estimates with their intervals."""
    tables: list[StoredTable] = field(default_factory=list)
    """Tables with the details."""
    params: dict[str, Any] = field(default_factory=dict)
    """Settings of the measurement."""
    notes: list[str] = field(default_factory=list)
    """Notes that readers of the result need."""
    command: str = ""
    """Command line that made the study, as its file names it."""


@dataclass(frozen=True, kw_only=True)
class ListedStudy:
    """A file of a study in a run folder."""

    name: str
    """Name of the file without its ending."""
    study: StoredStudy | None
    """The study; None if the file is damaged."""
    problem: str = ""
    """Error of a damaged file in one line; empty otherwise."""
    page: str = ""
    """Static page with the pictures, relative to the run folder; empty without one."""


_STUDY: TypeAdapter[StoredStudy] = TypeAdapter(StoredStudy)


def has_studies(run: Path) -> bool:
    """Return True if the run folder has a file of a study."""
    return bool(_names(run))


def read_studies(run: Path) -> list[ListedStudy]:
    """Return the studies of a run by name, at most `MOST_STUDIES`; damaged files have a problem."""
    return [_listed(run, name) for name in _names(run)]


def read_study(run: Path, name: str) -> ListedStudy:
    """Return one study; raise RunError, in one line, if the run has none of this name."""
    if name not in _names(run):
        raise RunError(f"{run.name} has no study {name[:80]!r}")
    return _listed(run, name)


def _names(run: Path) -> list[str]:
    try:
        found = sorted(path.stem for path in (run / STUDIES).glob("*.json"))
    except OSError:
        return []
    return [name for name in found if name.isprintable()][:MOST_STUDIES]


def _listed(run: Path, name: str) -> ListedStudy:
    page = f"studies/{name}.html"
    page = page if (run / page).is_file() else ""
    file = f"studies/{name}.json"
    try:
        with open_regular(run / file, root=run) as opened:
            data = opened.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise RunError(f"{file} has more than {LARGEST:,} bytes")
        study = _STUDY.validate_python(decode(data))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))[:80]
        return ListedStudy(name=name, study=None, problem=f"{file}: {where}: {first['msg']}"[:300])
    except RunError as error:
        return ListedStudy(name=name, study=None, problem=str(error)[:300])
    except (OSError, ValueError, RecursionError) as error:
        reason = f"{file} cannot be read ({type(error).__name__})"
        return ListedStudy(name=name, study=None, problem=reason)
    return ListedStudy(name=name, study=study, page=page)


def _text(value: _Cell) -> str:
    if isinstance(value, bool | str):
        return str(value)
    found = _number(value)
    return "-" if found is None else number(found)


def _step(value: _Cell) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 10**DIGITS else None


def _number(value: _Cell) -> float | None:
    """Return a finite number that can be drawn; None for any other cell."""
    if isinstance(value, bool | str) or value is None or abs(value) > 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def to_json(listed: ListedStudy) -> Mapping[str, Any]:
    """Return a listed study as plain data."""
    return {
        "name": listed.name,
        "problem": listed.problem,
        "page": listed.page,
        "study": listed.study,
    }
