"""The present work of this process: a phase, and how much of it is done.

The parts of a run that take long report here. `Trainer` and warm starts set the phase; rollouts,
updates and warm starts count their work. The panel on the terminal shows it, and `ActivityFile`
writes it to `progress.json` in the run folder, which the pages read. A process has one activity, as
it has one log.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from selfplay.run.formatting import duration

FILE = "progress.json"
"""Name of the file in the run folder. It exists while the run is training."""
INTERVAL = 1.0
"""Seconds between two writes of the file."""


def study_file(measure: str) -> str:
    """Return the name of the file that shows the present work of a study, in its folder."""
    return f".{measure}.progress"


class Tally:
    """Pieces of work of one kind, such as the episodes of a rollout, and how many are done."""

    def __init__(self, unit: str, total: int) -> None:
        """Args:
        unit: Name of the pieces, in the plural.
        total: Number of pieces.
        """
        self.unit, self.total = unit, total
        self.done = self.tokens = 0
        self.since = time.time()

    def add(self, count: int = 1, *, tokens: int = 0) -> None:
        """Count completed pieces, and the tokens that were sampled for them."""
        self.done += count
        self.tokens += tokens

    def words(self, now: float) -> str:
        """Return the completed work, the tokens per second and the time left, for people to read.

        `now` is in seconds since the epoch.
        """
        return tally_words(self.unit, self.done, self.total, self.tokens, now - self.since)


def tally_words(unit: str, done: int, total: int, tokens: int, seconds: float) -> str:
    """Return the text of a tally: "12 of 64 episodes, 500 tokens/s, 17 s left".

    Speed and time left are means over the `seconds` so far; they are left out in the first second.
    """
    parts = [f"{done} of {total} {unit}"]
    if tokens and seconds >= 1:
        parts.append(f"{tokens / seconds:.0f} tokens/s")
    if 0 < done < total and seconds >= 1:
        parts.append(f"{duration(seconds / done * (total - done))} left")
    return ", ".join(parts)


class Activity:
    """A phase, such as "rollout", and the tallies of the work that is under way."""

    def __init__(self) -> None:
        self.phase, self.since = "starting", time.time()
        self.notes: list[str] = []
        """Lines for the user, such as that a warm start came from the cache; each is shown once."""
        self._tallies: list[Tally] = []
        self._lock = threading.Lock()

    def begin(self, phase: str) -> None:
        """Set the phase, for people to read."""
        if phase != self.phase:
            self.phase, self.since = phase, time.time()

    def note(self, line: str) -> None:
        """Add a line, once."""
        if line not in self.notes:
            self.notes.append(line)

    @contextmanager
    def counting(self, unit: str, total: int) -> Iterator[Tally]:
        """Yield a tally that counts as under way until the end of the context."""
        tally = Tally(unit, total)
        with self._lock:
            self._tallies.append(tally)
        try:
            yield tally
        finally:
            with self._lock:
                self._tallies.remove(tally)

    def tallies(self) -> tuple[Tally, ...]:
        """Return the tallies that are under way, the earliest first."""
        with self._lock:
            return tuple(self._tallies)


ACTIVITY = Activity()
"""The activity of this process."""


class ActivityFile:
    """A context in which a thread writes the activity of this process to a run folder.

    The file describes only the present and is no record: if the disk refuses it, the run goes on.
    """

    def __init__(
        self,
        folder: Path,
        state: Callable[[], dict[str, Any]] = dict,
        *,
        name: str = FILE,
        activity: Activity = ACTIVITY,
        interval: float = INTERVAL,
        at_once: bool = True,
    ) -> None:
        """Args:
        folder: The run folder, or its folder of studies.
        state: Function that returns more fields, such as the number of completed steps.
        name: Name of the file.
        activity: The activity to write.
        interval: Seconds between two writes.
        at_once: Write when the context begins; False: wait for counted work or another phase, so
            that a command whose arguments are refused touches no file.
        """
        self.path = folder / name
        self._begun, self._first = at_once, activity.since
        self.state, self.activity, self.interval = state, activity, interval
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="activity", daemon=True)

    def __enter__(self) -> "ActivityFile":
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        if self._begun:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)

    def content(self) -> dict[str, Any]:
        """Return the fields of the file; times in seconds since the epoch."""
        tallies = [
            {
                "unit": each.unit,
                "done": each.done,
                "total": each.total,
                "tokens": each.tokens,
                "since": each.since,
            }
            for each in self.activity.tallies()
        ]
        about = {
            "phase": self.activity.phase,
            "since": self.activity.since,
            "tallies": tallies,
            "notes": list(self.activity.notes),
        }
        return {"time": time.time(), **self.state(), **about}

    def _write_on(self) -> None:
        while not self._end.wait(self.interval):
            self._write()

    def _write(self) -> None:
        changed = self.activity.since != self._first or self.activity.tallies()
        if not (self._begun or changed):
            return
        self._begun = True
        partial = self.path.with_name(f".{self.path.name}.partial")
        with suppress(OSError):
            partial.unlink(missing_ok=True)
            with partial.open("x", encoding="utf-8") as file:
                json.dump(self.content(), file)
            partial.replace(self.path)
