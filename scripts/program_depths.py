"""Prints the depth of composition of the programs that runs of `tiny/growing_programs` were shown.

The depth of a program is `Program.depth` in `arenas.absolute_zero.tiny_python`, for inputs of four
letters. A run has up to three sources of programs: the demonstrations of its solvers in the warm
start, the valid proposals of its proposer, and the other tasks that its solvers attempted: fixed
ones, or earlier proposals. A row for each source gives the number of programs with repetitions, how
many of them are outside the sub-language and so have no depth, the largest depth, the percentage
deeper than every demonstration, and the mean depth in the first and in the last ten recorded steps.

A second table gives, for the last ten recorded steps and programs of 3 to 8 lines, the percentage
of solvers' answers whose work has as many lines as the program, and the mean number of its lines.
The third one, for the held-out programs of each depth, gives the percentage of right answers if one
or two lines are left out, as a mean over all choices of these lines.

Usage: python scripts/program_depths.py RUN [RUN ...]
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, islice
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

from arenas.absolute_zero.edits import DEPTHS, held_out_depth
from arenas.absolute_zero.tiny_python import Program
from selfplay.config.instantiate import build
from selfplay.models.warmstart import WarmStart
from selfplay.rng import derive
from selfplay.run.directory import Run
from selfplay.study.recorded_episodes import recorded_episodes
from selfplay.types import Episode, Task

ENDS = 10
"""Number of steps at each end of a run whose mean depth is printed."""
LINES = range(3, 9)
"""Numbers of lines of the programs whose work is counted."""


def demonstrated(config: Mapping[str, Any]) -> list[str]:
    """Return the programs of all solver demonstrations of a run's warm start.

    They are drawn again, so the run must be of the same version of the arena.
    """
    warm = build(config["warmstart"], where="warmstart")
    if not isinstance(warm, WarmStart):
        raise SystemExit("the run has no warm start on demonstrations; name another run")
    rng = Random(derive(warm.seed, "demonstrations"))
    found = []
    for step in range(warm.steps):
        stream = warm.demonstrations.stream(rng, step / warm.steps)
        shown = [each for each in islice(stream, warm.batch) if each.role == "solver"]
        found += [str(each.observation.fields["program"]) for each in shown]
    return found


def attempted(
    steps: Iterable[tuple[int, Sequence[Episode]]],
) -> dict[str, list[list[str]]]:
    """Return the programs of each recorded step: those proposed, and those of other tasks."""
    found: dict[str, list[list[str]]] = {"proposals": [], "other tasks": []}
    for _, episodes in steps:
        created = [task for episode in episodes for task in episode.created]
        given = [e.task for e in episodes if e.task.payload["mode"] == "solve"]
        found["proposals"].append(_programs(created))
        found["other tasks"].append(_programs(given))
    return found


def worked(episodes: Iterable[Episode]) -> dict[int, list[int]]:
    """Return, for each number of lines of a program, the lines of work of each solver's answer."""
    found: dict[int, list[int]] = {}
    for episode in episodes:
        for task in episode.created or (episode.task,):
            program = Program.parse(str(task.payload.get("program")))
            turns = [turn for turn in episode.turns if turn.role == "solver"]
            if program is not None and turns:
                work = [turn.text.partition("</think>")[0].count(" a = ") for turn in turns]
                found.setdefault(len(program.lines), []).extend(work)
    return found


def right_without(program: Program, word: str, *, missing: int) -> float:
    """Return the fraction of right answers over all choices of `missing` lines to leave out."""
    kept = list(combinations(program.lines, len(program.lines) - missing))
    wanted = program.trace(word)[-1]
    return mean(Program(lines=lines).trace(word)[-1] == wanted for lines in kept)


def depths(sources: Iterable[str]) -> list[int]:
    """Return the depth of each program that belongs to the sub-language."""
    programs = map(Program.parse, sources)
    return [program.depth() for program in programs if program is not None]


def row(name: str, steps: Sequence[Sequence[str]], shown: int) -> str:
    """Return the row of a source.

    Args:
        name: Name of the source.
        steps: [steps][programs] sources of programs.
        shown: Largest depth of the demonstrations.
    """
    count = sum(map(len, steps))
    found = [depth for step in steps for depth in depths(step)]
    deeper = f"{sum(depth > shown for depth in found) / len(found):.1%}" if found else "-"
    ends = [[d for step in part for d in depths(step)] for part in (steps[:ENDS], steps[-ENDS:])]
    means = " → ".join(f"{mean(each):.2f}" if each else "-" for each in ends)
    largest = str(max(found, default="-"))
    cells = [name, f"{count:,}", str(count - len(found)), largest, deeper, means]
    return f"| {' | '.join(cells)} |"


def _programs(tasks: Sequence[Task]) -> list[str]:
    return [str(task.payload["program"]) for task in tasks]


def _work_cell(work: Sequence[int], lines: int) -> str:
    if not work:
        return "-"
    return f"{mean(count == lines for count in work):.0%}, {mean(work):.1f} lines"


def _print_chances() -> None:
    print("\n| held-out programs | one line left out | two lines left out |\n|---|---|---|")
    for lines, depth in DEPTHS:
        tasks = held_out_depth(lines=lines, depth=depth)
        pairs = [(Program.parse(t.payload["program"]), t.payload["inputs"][0][1:-1]) for t in tasks]
        chances = [
            mean(right_without(made, word, missing=missing) for made, word in pairs if made)
            for missing in (1, 2)
        ]
        print(f"| {lines} lines, depth {depth} | {chances[0]:.1%} | {chances[1]:.1%} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    options = parser.parse_args(arguments)
    print("| programs | number | no depth | largest | deeper | mean, first → last ten steps |")
    print("|---|---|---|---|---|---|")
    work: dict[str, dict[int, list[int]]] = {}
    for run in options.runs:
        solved = demonstrated(Run.open(run).config())
        shown = max(depths(solved), default=0)
        print(row(f"{run}, demonstrations", [solved], shown))
        recorded = recorded_episodes(run)
        for name, steps in attempted(recorded).items():
            if any(steps):
                print(row(f"{run}, {name}", steps, shown), flush=True)
        work[str(run)] = worked(each for _, episodes in recorded[-ENDS:] for each in episodes)
    print(f"\n| work on programs of | {' | '.join(f'{lines} lines' for lines in LINES)} |")
    print("|---" * (len(LINES) + 1) + "|")
    for name, found in work.items():
        cells = [_work_cell(found.get(lines, []), lines) for lines in LINES]
        print(f"| {' | '.join([name, *cells])} |")
    _print_chances()


if __name__ == "__main__":
    main()
