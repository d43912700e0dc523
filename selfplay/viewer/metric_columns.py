"""The metrics of a run as columns. If `metrics.jsonl` grows, only its new bytes are parsed."""

import math
import os
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from selfplay.errors import RunError
from selfplay.run.formatting import counted
from selfplay.run.record_reader import DIGITS, DamagedLines, as_float, decode
from selfplay.run.report.repeated_metrics import repeated
from selfplay.run.run_folder import METRICS
from selfplay.run.untrusted import open_regular

CHUNK = 1 << 20
"""Number of bytes that are read at once."""
LONGEST_LINE = 4_000_000
"""Largest number of bytes of a line; a longer line counts as damaged and is never held whole."""
LONGEST_NAME = 300
"""Largest number of characters of a metric's name."""
MOST_METRICS = 5_000
"""Largest number of metrics of a run."""
MOST_VALUES = 30_000_000
"""Largest number of values of a run; each takes 12 bytes of memory."""
STEP = 10
"""Memory of a step besides its values, as a number of values of 12 bytes."""
MOST_STORED = 60_000_000
"""Largest number of values of all runs in memory, at 12 bytes each."""
TAIL = 64
"""Number of bytes before the end of the parsed part that show if the file was rewritten."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The values of one metric of a run."""

    steps: NDArray[np.int64]
    """[N] steps that have a value, ascending."""
    values: NDArray[np.float64]
    """[N] values, finite or not."""


@dataclass
class _Column:
    rows: "array[int]" = field(default_factory=lambda: array("I"))
    values: "array[float]" = field(default_factory=lambda: array("d"))


class MetricColumns:
    """The metrics of one run.

    `ColumnStore` makes one for every run that is shown and calls `update` for each request. Damaged
    lines are counted and left out.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / METRICS
        self._lock = Lock()
        self._stamp = ""
        self._clear()

    def _clear(self) -> None:
        self._file = (0, 0)
        self._offset, self._line, self._skipping, self._tail = 0, 0, False, b""
        self._columns: dict[str, _Column] = {}
        self._steps: array[int] = array("q")
        self._row_of: dict[int, int] = {}
        self._stored = 0
        self.damaged = DamagedLines()
        self.omitted = 0
        """Number of values left out because the run has too many metrics or because a name is too
        long."""

    @property
    def names(self) -> list[str]:
        """Names of all metrics, sorted."""
        with self._lock:
            return sorted(self._columns)

    @property
    def distinct(self) -> list[str]:
        """Names of all metrics, sorted, except the metrics by task type of an evaluation with a
        single type, because they repeat the metrics of the evaluation."""
        names = self.names
        finite = {}
        for name in (each for each in names if each.startswith("evaluation/")):
            curve = self.curve(name)
            points = zip(curve.steps.tolist(), curve.values.tolist(), strict=True)
            finite[name] = [point for point in points if math.isfinite(point[1])]
        repeats = repeated(finite)
        return [name for name in names if name not in repeats]

    @property
    def problem(self) -> str:
        """One line about lines and values that were left out; "" if there are none."""
        parts = [self.damaged.text(self.path.parent)]
        if self.omitted:
            parts.append(f"left out {counted(self.omitted, 'value')} of further metrics")
        return "; ".join(filter(None, parts))

    @property
    def size(self) -> int:
        """Memory as a number of values of 12 bytes: all stored values, and `STEP` for each step."""
        return self._stored

    @property
    def newest(self) -> int:
        """The largest step; 0 without a step."""
        with self._lock:
            return max(self._row_of, default=0)

    def rows(self, names: Iterable[str]) -> dict[int, dict[str, float]]:
        """Return all steps, ascending, with their values of the named metrics."""
        with self._lock:
            rows: dict[int, dict[str, float]] = {step: {} for step in sorted(self._row_of)}
        for name in names:
            curve = self.curve(name)
            for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
                rows.setdefault(step, {})[name] = value
        return rows

    def curve(self, name: str) -> Curve:
        """Return the curve of a metric; it has no points if the run lacks the metric."""
        with self._lock:
            column = self._columns.get(name) or _Column()
            rows, values = np.array(column.rows, dtype=np.int64), np.array(column.values)
            steps = np.array(self._steps, dtype=np.int64)[rows]
            if len(self._row_of) < len(self._steps):  # a step was recorded again
                last = np.fromiter(self._row_of.values(), dtype=np.int64)
                kept = np.isin(rows, last)
                steps, values = steps[kept], values[kept]
        if np.any(np.diff(steps) < 0):
            order = np.argsort(steps, kind="stable")
            steps, values = steps[order], values[order]
        return Curve(steps=steps, values=values)

    def update(self) -> None:
        """Parse the lines that were added since the last call.

        A file that was replaced, cut or rewritten is parsed again from its start. A missing file
        means that the run has not finished a step. Raises RunError if the file cannot be read or
        has too many values.
        """
        with self._lock:
            stamp = stamp_of(self.path)
            if stamp == self._stamp:
                return
            try:
                if os.path.lexists(self.path):
                    with open_regular(self.path, root=self.path.parent) as file:
                        self._read(file)
                else:
                    self._clear()
            except OSError as error:
                raise RunError(f"{self.path}: cannot be read ({error.strerror})") from error
            self._stamp = stamp

    def _read(self, file: BinaryIO) -> None:
        found = os.fstat(file.fileno())
        same = (found.st_dev, found.st_ino) == self._file and found.st_size >= self._offset
        if same:
            file.seek(self._offset - len(self._tail))
            same = file.read(len(self._tail)) == self._tail
        if not same:
            self._clear()
            self._file = (found.st_dev, found.st_ino)
            file.seek(0)
        left = b""
        while chunk := file.read(CHUNK):
            *lines, left = (left + chunk).split(b"\n")
            for line in lines:
                self._end(line)
            if self._skipping or len(left) > LONGEST_LINE:
                self._advance(left)
                self._skipping, left = True, b""
        # A last line without its line break is in progress; it is read again next time.

    def _end(self, line: bytes) -> None:
        """Take a line without its line break, or the end of one that was too long to hold."""
        self._advance(line + b"\n")
        self._line += 1
        whole = not self._skipping and len(line) <= LONGEST_LINE
        self._skipping = False
        if not (whole and self._add(line)):
            self.damaged.add(f"{self.path}, line {self._line:,}: not a step with metrics")

    def _advance(self, data: bytes) -> None:
        self._offset += len(data)
        self._tail = (self._tail + data[-TAIL:])[-TAIL:]

    def _add(self, line: bytes) -> bool:
        """Store the values of a line; return False if it is not a step with metrics."""
        try:
            record = decode(line)
        except ValueError:
            return False
        step = record.get("step") if isinstance(record, dict) else None
        if not isinstance(step, int) or isinstance(step, bool) or abs(step) >= 10**DIGITS:
            return False
        row = len(self._steps)
        self._steps.append(step)
        self._row_of[step] = row  # for a repeated step, the last line counts
        self._stored += STEP
        for name, value in record.items():
            if name == "step" or not isinstance(value, int | float):
                continue
            column = self._columns.get(name)
            if column is None:
                if len(name) > LONGEST_NAME or len(self._columns) >= MOST_METRICS:
                    self.omitted += 1
                    continue
                column = self._columns[name] = _Column()
            column.rows.append(row)
            column.values.append(as_float(value))
            self._stored += 1
        if self._stored > MOST_VALUES:
            raise RunError(f"{self.path}: more than {MOST_VALUES:,} values; no curves are drawn")
        return True


class ColumnStore:
    """The metrics of the runs that were shown last, which all pages of curves and of runs share."""

    def __init__(self) -> None:
        self._columns: dict[Path, MetricColumns] = {}
        self._lock = Lock()

    def of(self, run: Path) -> MetricColumns:
        """Return the metrics of a run folder as they are now; RunError if they cannot be read."""
        with self._lock:
            columns = self._columns.pop(run, None) or MetricColumns(run)
            self._columns[run] = columns  # the latest is last
        columns.update()
        with self._lock:
            while sum(each.size for each in self._columns.values()) > MOST_STORED:
                self._columns.pop(next(iter(self._columns)))
        return columns


def stamp_of(path: Path) -> str:
    """Return a text that changes with the file at `path`, by one call of `stat`; "none" if that
    fails."""
    try:
        found = path.stat()
    except OSError:
        return "none"
    return f"{found.st_dev}-{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"
