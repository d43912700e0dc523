"""Prints the fraction of rare lines in proposals of `tiny/rare_lines`, and the solve rates.

A row for each run gives the percentage of the proposed lines that are rare in the first and in the
last ten recorded steps (of those up to step --until), and the solve rate, in the same steps, of the
proposals without a rare line and of those with one or more. Proposals that are not played (invalid
or known) are not counted.

Usage: python scripts/rare_lines.py RUN [RUN ...] [--until STEP]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from arenas.absolute_zero.rare_lines import RARE
from selfplay.study.recorded_episodes import recorded_episodes
from selfplay.types import Episode

ENDS = 10
"""Number of steps at each end of a run."""
SOURCES = frozenset(line.source.strip() for line in RARE)
"""Sources of the rare lines."""


def rare_flags(program: str) -> list[bool]:
    """Return, for each line of a program between its header and its return, True if it is rare."""
    return [line.strip() in SOURCES for line in program.splitlines()[1:-1]]


def played(episodes: Sequence[Episode]) -> list[tuple[list[bool], float]]:
    """Return the flags of the lines and the solve rate of each proposal that was played."""
    return [
        (rare_flags(str(task.payload["program"])), episode.metrics["solve_rate"])
        for episode in episodes
        for task in episode.created
        if "solve_rate" in episode.metrics
    ]


def cells(proposals: Sequence[tuple[list[bool], float]]) -> list[str]:
    """Return the percentage of rare lines, and the solve rates without and with a rare line."""
    flags = [flag for lines, _ in proposals for flag in lines]
    common = [rate for lines, rate in proposals if not any(lines)]
    rare = [rate for lines, rate in proposals if any(lines)]
    return [f"{mean(each):.1%}" if each else "-" for each in (flags, common, rare)]


def row(run: Path, until: int | None = None) -> str:
    """Return the row of a run for its steps up to `until`, or for all steps if that is None."""
    recorded = recorded_episodes(run)
    steps = [list(episodes) for step, episodes in recorded if until is None or step <= until]
    ends = [
        cells([proposal for step in part for proposal in played(step)])
        for part in (steps[:ENDS], steps[-ENDS:])
    ]
    both = [f"{first} → {last}" for first, last in zip(*ends, strict=True)]
    return f"| {run} | {' | '.join(both)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--until", type=int, metavar="STEP", help="last step that counts")
    options = parser.parse_args(arguments)
    print(
        "| first → last ten steps | rare lines | solved, no rare line | solved, with a rare line |"
    )
    print("|---|---|---|---|")
    for run in options.runs:
        print(row(run, options.until), flush=True)


if __name__ == "__main__":
    main()
