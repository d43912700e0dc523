"""Progress of a warm start: lines on the terminal, and the process's activity."""

import time
from collections.abc import Callable
from types import TracebackType

from selfplay.run.activity import ACTIVITY

Report = Callable[[str], None]
"""Function that shows a line to the user."""
SECONDS_BETWEEN_REPORTS = 5.0
"""Seconds between two lines about the progress of a warm start."""


class TrainingProgress:
    """A context around the steps of a warm start.

    It reports a line every few seconds and one at the end, and counts the steps in `ACTIVITY`.
    """

    def __init__(self, report: Report, steps: int, *, first: int = 0) -> None:
        """Args:
        report: Function that shows a line.
        steps: Number of steps of the warm start.
        first: Number of steps that an interrupted warm start completed.
        """
        self.report, self.steps, self.first = report, steps, first
        self.started = self.reported = time.perf_counter()
        self._counting = ACTIVITY.counting("steps of the warm start", steps - first)

    def __enter__(self) -> "TrainingProgress":
        ACTIVITY.begin("warm start")
        self._tally = self._counting.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._counting.__exit__(kind, error, trace)

    def show(self, step: int, loss: float, *, last: bool = False) -> None:
        """Count a step, numbered from 0; report it if it is the last one or the latest line is
        old."""
        self._tally.add()
        now, done = time.perf_counter(), step + 1
        if now - self.reported < SECONDS_BETWEEN_REPORTS and not last and done < self.steps:
            return
        self.reported, seconds = now, now - self.started
        left = 0.0 if last else seconds / (done - self.first) * (self.steps - done)
        self.report(
            f"warm start: step {done}/{self.steps}, loss {loss:.3f}, {seconds:.0f} s, "
            f"about {left:.0f} s left"
        )
