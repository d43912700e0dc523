"""Parts that the benchmarks share: work that is timed in turns, and the lines of one table."""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Line:
    """One measurement."""

    what: str
    """Name of the measurement."""
    ours: float
    """Median of our side."""
    unit: str
    """Unit of `ours` and `other`."""
    other: float | None = None
    """Median of the other side of the comparison."""
    ratio: float | None = None
    """Median over the rounds of the other side's time divided by ours."""
    low: float | None = None
    """Smallest ratio of a round."""
    high: float | None = None
    """Largest ratio of a round."""
    target: float | None = None
    """Target of the ratio, or of `ours` if there is no ratio."""

    @property
    def reached(self) -> bool | None:
        """True if the target was reached; None without a target."""
        found = self.ours if self.ratio is None else self.ratio
        return None if self.target is None else found >= self.target


def interleaved(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each work in each round, after a round that warms up.

    The works run in turns, in every other round in the opposite order, so that other load of the
    machine affects all of them alike. `clock` is `time.thread_time` for CPU seconds of this thread.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name in list(works) if number % 2 else list(works)[::-1]:
            begin = clock()
            works[name]()
            if number:
                seconds[name].append(clock() - begin)
    return seconds


def compared(
    what: str,
    ours: Sequence[float],
    other: Sequence[float],
    *,
    target: float | None = None,
) -> Line:
    """Compare our seconds with another way's in the same rounds."""
    ratios = [theirs / mine for mine, theirs in zip(ours, other, strict=True)]
    return Line(
        what=what,
        ours=statistics.median(ours),
        other=statistics.median(other),
        unit="s",
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        target=target,
    )


def arguments(about: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to save the lines")
    return parser


def show(lines: Sequence[Line], path: Path | None) -> None:
    """Print the lines, and save them where a path is given."""
    width = max(len(line.what) for line in lines)
    for line in lines:
        text = f"{line.what:{width}}  {_number(line.ours)} {line.unit}"
        if line.other is not None and line.ratio is not None:
            text += f"  compared with {_number(line.other)} {line.unit}: {line.ratio:.2f} x"
            text += f" ({line.low:.2f} to {line.high:.2f})"
        if line.target is not None:
            text += f"  target {_number(line.target)}: {'yes' if line.reached else 'NO'}"
        print(text)
    if path is not None:
        rows = [asdict(line) for line in lines]
        path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def load() -> str:
    """Return the number of cores and the load of the machine in words."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
