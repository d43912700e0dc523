"""Live progress of a run: a panel on a terminal, plain lines anywhere else."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from selfplay.run.activity import ACTIVITY
from selfplay.run.declarations import RunMetrics
from selfplay.run.formatting import (
    ASCII_BARS,
    BARS,
    as_of,
    change,
    counted,
    direction,
    duration,
    format_value,
    number,
    sparkline,
    words,
)

HISTORY = 240
"""Number of latest steps that a sparkline covers."""
LONGEST_PREFIX = 40
"""Largest number of characters of the run's name before a plain line; the first line has all."""
MOST_COLUMNS = 4
"""Largest number of metrics shown per role, policy or task type."""

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "role": ("reward", "valid", "completion_tokens"),
    "arena": ("solve_rate", "valid_proposal"),
    "policy": ("loss", "policy_kl", "surprisal", "gradient_norm"),
}
_SHORT = {
    "completion_tokens": "tokens",
    "gradient_norm": "grad norm",
    "policy_kl": "KL",
    "valid_proposal": "valid proposal",
}


def _name(prefix: str, metric: str) -> str:
    """Return a metric's name for readers: "parsed" for a role's `valid`, which counts illegal moves
    too, else the name itself."""
    return "parsed" if (prefix, metric) == ("role", "valid") else metric


class Progress:
    """A display of a run's progress, used as a context manager; threads may call its methods."""

    def __init__(
        self,
        total_steps: int,
        name: str,
        console: Console | None = None,
        live: bool = True,
        *,
        done: int = 0,
        every: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        total_steps: Steps of the whole run, including those before a resume.
        name: The run's name.
        console: The console to print to; None: standard output.
        live: True shows a panel that redraws itself if the terminal supports it; False always
            prints plain lines.
        done: Steps before a resume.
        every: Steps between two plain lines; None: about twenty lines per run.
        clock: A monotonic clock, in seconds.
        """
        self.console = console or Console()
        # With FORCE_COLOR rich treats a pipe as a terminal; a log must not get cursor movements.
        terminal = self.console.is_terminal and not self.console.is_dumb_terminal
        self.live = live and terminal and (console is not None or sys.stdout.isatty())
        self.total_steps, self.name = total_steps, name
        self._prefix = name if len(name) <= LONGEST_PREFIX else f"{name[: LONGEST_PREFIX - 3]}..."
        self.every = every or max(1, total_steps // 20)
        self.declared = RunMetrics()
        """Declarations of the metrics; training replaces them by those of the run's arenas."""
        self.done = done
        self._clock = clock
        self._started = clock()
        self._pace: deque[float] = deque(maxlen=20)
        self._first_step = 0.0
        self._history: dict[str, deque[float]] = {}
        self._latest: dict[str, int] = {}
        self._evaluations: dict[str, tuple[Mapping[str, float], Mapping[str, float], str]] = {}
        self._ended = ""
        self._spinner = Spinner("dots" if self._unicode else "line", style="cyan")
        self._lock = threading.Lock()
        self._view: Live | None = None

    def __enter__(self) -> "Progress":
        self._started = self._clock()
        if self.live:
            self._view = Live(self, console=self.console, refresh_per_second=6)
            self._view.start()
        else:
            self._line(f"{self.name}: {counted(self.total_steps, 'step')}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            if kind is None:
                self._ended = "finished"
            elif issubclass(kind, KeyboardInterrupt):
                self._ended = "interrupted"
            else:
                self._ended = "stopped with an error"
        if self._view is not None:
            view, self._view = self._view, None  # the final panel has no spinner
            view.stop()
            return
        took = duration(self._clock() - self._started)
        self._line(
            f"{self._prefix}: {self._ended} at step {self.done}/{self.total_steps} after {took}"
        )

    # Events of a run -----------------------------------------------------------------------------

    def step(self, metrics: Mapping[str, float]) -> None:
        """Show a completed step.

        `metrics` is the step's line of metrics.jsonl, with "step" if the number is known.
        """
        with self._lock:
            self.done = int(metrics.get("step", self.done + 1))  # a rollback lowers it
            if not self._pace:
                self._first_step = metrics.get("seconds/total", self._clock() - self._started)
            self._pace.append(self._clock())
            for key, value in metrics.items():
                if isinstance(value, int | float):
                    history = self._history.setdefault(key, deque(maxlen=HISTORY))
                    history.append(float(value))
                    self._latest[key] = self.done
        last = self.done >= self.total_steps
        if not self.live and (len(self._pace) == 1 or last or self.done % self.every == 0):
            self._line(self._plain_step())

    def phase(self, text: str) -> None:
        """Show a phase that is worth a line of a log, such as an evaluation."""
        changed = text != ACTIVITY.phase
        ACTIVITY.begin(text)
        if not self.live and changed:
            self._line(f"{self._prefix}: {text}")

    def state(self) -> dict[str, Any]:
        """Return steps and time left, as `ActivityFile` writes them to progress.json."""
        with self._lock:
            left = self._remaining()
        return {"step": self.done, "steps": self.total_steps, "seconds_left": left}

    def evaluation(self, name: str, when: str, metrics: Mapping[str, float]) -> None:
        """Show the metrics of an evaluation. Later values are compared to the first ones."""
        with self._lock:
            before = self._evaluations[name][0] if name in self._evaluations else metrics
            self._evaluations[name] = (dict(before), dict(metrics), when)
        if not self.live:
            shown = "  ".join(
                f"{key} {self._read(f'evaluation/{name}/{key}', metrics[key])}"
                for key in self._chief_first(name, metrics)
                if "/" not in key or self.declared.is_chief(name, key)
            )
            self._line(f"{self._prefix}: evaluation {name} ({when})  {shown}")

    def note(self, text: str) -> None:
        """Print a line that stays visible, such as the path of a checkpoint."""
        if self.live:
            self.console.print(Text(text))
        else:
            self._line(f"{self._prefix}: {text}")

    # Values --------------------------------------------------------------------------------------

    @property
    def _unicode(self) -> bool:
        return self.console.encoding.lower().startswith("utf")

    def _seconds_per_step(self) -> float | None:
        times = list(self._pace)
        if len(times) > 1:
            return (times[-1] - times[0]) / (len(times) - 1)
        return self._first_step if times else None

    def _remaining(self) -> float | None:
        pace = self._seconds_per_step()
        return None if pace is None else pace * max(0, self.total_steps - self.done)

    def _rows(self, prefix: str) -> tuple[list[str], list[str]]:
        """Return (names of the rows, metrics of the columns) of the metrics under a prefix."""
        rows: dict[str, None] = {}
        metrics: dict[str, None] = {}
        for key in self._history:
            section, _, rest = key.partition("/")
            row, _, metric = rest.rpartition("/")
            if section == prefix and metric and "/" not in row and (row or prefix == "arena"):
                rows[row] = None
                metrics[metric] = None
        known = [metric for metric in _COLUMNS[prefix] if metric in metrics]
        others = sorted(set(metrics) - set(known))
        columns = [*known, *others][:MOST_COLUMNS]
        if "" in rows:  # a row with the same values as that of all tasks would only repeat it
            shown = {row: self._values(prefix, row, columns) for row in rows}
            rows = {row: None for row in rows if not row or shown[row] != shown[""]}
        return sorted(rows), columns

    def _values(self, prefix: str, row: str, metrics: list[str]) -> list[list[float]]:
        keys = [f"{prefix}/{row}/{metric}" if row else f"{prefix}/{metric}" for metric in metrics]
        return [list(self._history.get(key, ())) for key in keys]

    def _read(self, key: str, value: float | None) -> str:
        return format_value(self.declared.of(key), value)

    def _newest(self, key: str) -> str:
        """Return the latest value as text, with its step if that is not the latest step."""
        return as_of(self._read(key, self._history[key][-1]), self._latest[key], self.done)

    def _chief_first(self, evaluation: str, metrics: Mapping[str, float]) -> list[str]:
        return sorted(metrics, key=lambda name: self.declared.rank(evaluation, name))

    # Plain lines ---------------------------------------------------------------------------------

    def _plain_step(self) -> str:
        parts = [f"{self._prefix}: step {self.done}/{self.total_steps}"]
        pace, remaining = self._seconds_per_step(), self._remaining()
        if pace is not None and remaining is not None:
            parts.append(f"{number(pace)} s/step, {duration(remaining)} left")
        for prefix, most in (("role", 2), ("policy", 1)):
            rows, metrics = self._rows(prefix)
            for row in rows:
                shown = [
                    f"{_name(prefix, metric)} {self._newest(key)}"
                    for metric in metrics[:most]
                    if (key := f"{prefix}/{row}/{metric}") in self._history
                ]
                illegal = f"{prefix}/{row}/verdict/illegal"
                if self._latest.get(illegal) == self.done and self._history[illegal][-1]:
                    shown.append(f"illegal {self._newest(illegal)}")
                parts.append(f"{row} " + " ".join(shown))
        return " | ".join(parts)

    def _line(self, text: str) -> None:
        clean = "".join(character if character.isprintable() else " " for character in text)
        encoding = self.console.encoding
        safe = clean.encode(encoding, "backslashreplace").decode(encoding)
        self.console.out(safe, highlight=False)

    # The panel -----------------------------------------------------------------------------------

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            yield self._panel(options.max_width)

    def _panel(self, width: int) -> RenderableType:
        blocks: list[RenderableType] = [self._head(width)]
        for prefix in ("role", "arena", "policy"):
            table = self._table(prefix, width)
            if table is not None:
                blocks += [Text(), table]
        if self._evaluations:
            blocks += [Text(), self._evaluation_table(width)]
        return Panel(
            Group(*blocks),
            title=Text(self.name, style="bold"),
            title_align="left",
            border_style="dim",
            padding=(0, 1),
        )

    def _head(self, width: int) -> RenderableType:
        remaining = self._remaining()
        pace = self._seconds_per_step()
        times = [f"{duration(self._clock() - self._started)} so far"]
        if pace is not None and remaining is not None:
            times = [f"{number(pace)} s/step", *times, f"{duration(remaining)} left"]
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True)
        bar = ProgressBar(total=max(1, self.total_steps), completed=self.done)
        grid.add_row(
            Text(f"step {self.done}/{self.total_steps}", style="bold"),
            bar,
            Text(", ".join(times if width >= 80 else times[-2:]), style="dim"),
        )
        state: RenderableType = Text(self._ended, style="cyan")
        if self._view is not None:
            self._spinner.update(text=Text(self._doing(), style="cyan"))
            state = self._spinner
        return Group(grid, state)

    def _doing(self) -> str:
        """Return the phase of this process, and how much of its work is done."""
        now = time.time()
        return ", ".join([ACTIVITY.phase, *(tally.words(now) for tally in ACTIVITY.tallies())])

    def _table(self, prefix: str, width: int) -> Table | None:
        rows, metrics = self._rows(prefix)
        if not rows:
            return None
        bars = min(12, (width - 20) // len(metrics) - 12)
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False)
        table.add_column(prefix, no_wrap=True)
        for metric in metrics:
            named = _name(prefix, metric)
            table.add_column(_SHORT.get(named, words(named)), min_width=6)  # a name may wrap
        for row in rows:
            cells = [
                self._cell(f"{prefix}/{row}/{m}" if row else f"{prefix}/{m}", bars) for m in metrics
            ]
            table.add_row(Text(words(row) or "all"), *cells)
        return table

    def _cell(self, key: str, bars: int) -> Text:
        history = self._history.get(key)
        if not history:
            return Text("")
        cell = Text(f"{self._newest(key):>6}", no_wrap=True)
        if bars >= 4:
            glyphs = BARS if self._unicode else ASCII_BARS
            cell.append(" " + sparkline(list(history), bars, bars=glyphs), style="cyan")
        return cell

    def _evaluation_table(self, width: int) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False)
        table.add_column("evaluation", no_wrap=True)
        for column in ("before", "now", "change"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True, style="dim")
        for name, (before, now, when) in self._evaluations.items():
            chief = self.declared.is_chief
            shown = [
                key for key in self._chief_first(name, now) if "/" not in key or chief(name, key)
            ]
            for key in shown[:2]:
                metric = self.declared.of(f"evaluation/{name}/{key}")
                difference = change(metric, before.get(key), now[key])
                unit = " pts" if metric.unit == "fraction" and difference != "-" else ""
                way = direction(metric, difference)
                table.add_row(
                    Text(words(name) if key == "accuracy" else f"{words(name)} {words(key)}"),
                    format_value(metric, before.get(key)),
                    Text(format_value(metric, now[key]), style="bold"),
                    Text(difference + unit, style={"up": "green", "down": "red"}.get(way, "")),
                    Text(when if width >= 64 else ""),
                )
        return table
