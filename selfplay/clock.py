"""The clock: wall-clock seconds of a step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Wall-clock seconds of a step by phase."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._phases: dict[str, float] = {}
        self._open: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a phase."""
        self._open[phase] = time.perf_counter()
        try:
            yield
        finally:
            self._phases[phase] = time.perf_counter() - self._open.pop(phase)

    def figures(self) -> dict[str, float]:
        """`seconds/<phase>` of the phases that ended, and `seconds/total` so far."""
        total = time.perf_counter() - self._start
        return {
            **{f"seconds/{name}": value for name, value in self._phases.items()},
            "seconds/total": total,
        }
