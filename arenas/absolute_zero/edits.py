"""Programs that grow by edits, so that the difficulty of the tasks has no upper end.

The demonstrations show solvers short programs of `arenas.absolute_zero.tiny_python`. They show
proposers how to edit an earlier program of any length: one line is added, replaced or removed.
Additions are as frequent as removals, so that a proposer that does not learn favours no length.
"""

from collections.abc import Collection, Iterator, Sequence
from random import Random

from arenas.absolute_zero.arena import programs_of, sources_of
from arenas.absolute_zero.demonstrations import (
    TinyDemonstrations,
    proposed_deduction,
    worked_deduction,
)
from arenas.absolute_zero.tiny_python import LINES, Domain, Program, problem, task_of
from selfplay.errors import ConfigError
from selfplay.types import Demonstration, Task

HELD_OUT = ((2, 3), (4, 6), (7, 9), (10, 12))
"""Ranges of lines of the held-out programs."""
DEPTHS = ((5, 3), (5, 4), (5, 5), (6, 3), (6, 4), (6, 5), (6, 6))
"""Number of lines and depth of the held-out programs that are drawn by depth."""
DRAWS = 10_000
"""Number of programs that are drawn at most to find one of a given depth."""


def deductions(
    *,
    lines: Sequence[int],
    count: int,
    seed: int,
    exclude: Collection[str] = (),
    depth: int | None = None,
) -> list[Task]:
    """Return tasks to find the output of different programs.

    Args:
        lines: Minimum and maximum number of lines of a program; all numbers are equally frequent.
        count: Number of tasks.
        seed: Seed of the programs and inputs.
        exclude: Sources that no program may have.
        depth: Depth of composition of each program (`Program.depth`). Each program then also
            writes a letter in at least one line, because programs that only move letters are so few
            that training contains them. None: any program.
    Raises:
        ConfigError: If there are too few different programs with the minimum number of lines, or if
            too few programs of the depth are found.
    """
    low, high = lines
    wanted = -(-count // (high - low + 1)) + sum(len(e.splitlines()) == low + 2 for e in exclude)
    if low < 1 or len(LINES) ** low < wanted:
        raise ConfigError(
            f"tasks of {low} lines: {wanted} different programs are needed, and there are "
            f"{len(LINES) ** low if low > 0 else 0}; raise lines or lower count"
        )
    rng, seen, tasks = Random(seed), set(exclude), []
    for number in range(count):
        length = low + number % (high - low + 1)
        domain = Domain(operations=(length, length))
        program = _drawn(domain, rng, seen, depth)
        seen.add(program.source)
        tasks.append(task_of("deduction", program, [domain.word(rng)]))
    return tasks


def _drawn(domain: Domain, rng: Random, seen: Collection[str], depth: int | None) -> Program:
    """Return a program that is not in `seen`; with a `depth`, it also writes a letter."""
    for _ in range(DRAWS):
        program = domain.program(rng, seen)
        if depth is None:
            return program
        if program.depth() == depth and any(line.letter for line in program.lines):
            return program
    raise ConfigError(
        f"depth={depth}: {DRAWS:,} draws gave no further program of this depth with "
        f"{domain.operations[0]} lines; give a depth of at most the lines, or lower count"
    )


def held_out(*, lines: Sequence[int], count: int = 60, seed: int = 20261123) -> list[Task]:
    """Return the held-out tasks of one range of `HELD_OUT`.

    Args:
        lines: Range of `HELD_OUT`, in lines of a program.
        count: Number of tasks.
        seed: Seed of the draw.
    """
    return deductions(lines=lines, count=count, seed=seed + lines[0])


def held_out_depth(*, lines: int, depth: int, count: int = 60, seed: int = 20261127) -> list[Task]:
    """Return the held-out tasks of one number of lines and one depth, a pair of `DEPTHS`.

    Args:
        lines: Number of lines of a program.
        depth: Depth of composition of a program.
        count: Number of tasks.
        seed: Seed of the draw.
    """
    pair_seed = seed + 100 * lines + depth
    return deductions(lines=(lines, lines), depth=depth, count=count, seed=pair_seed)


def forbidden() -> frozenset[str]:
    """Return the normal forms of all held-out programs, which a proposal may not have."""
    return programs_of(_all_held_out())


def shown(*, lines: Sequence[int], count: int, seed: int) -> list[Task]:
    """Return tasks like those of the demonstrations, without held-out programs.

    Args:
        lines: Minimum and maximum number of lines of a program.
        count: Number of tasks.
        seed: Seed of the draw.
    """
    return deductions(lines=lines, count=count, seed=seed, exclude=sources_of(_all_held_out()))


def edited(program: Program, rng: Random, *, longest: int) -> Program:
    """Return the program with one line added, replaced or removed, each equally likely.

    A line is replaced instead if the removal would leave no line, or if the addition would make
    more than `longest` lines.
    """
    lines = list(program.lines)
    new = Domain(operations=(1, 1)).program(rng).lines[0]
    edit = rng.choice(("add", "replace", "remove"))
    if edit == "add" and len(lines) < longest:
        lines.insert(rng.randint(0, len(lines)), new)
    elif edit == "remove" and len(lines) > 1:
        del lines[rng.randrange(len(lines))]
    else:
        lines[rng.randrange(len(lines))] = new
    return Program(lines=tuple(lines))


class EditDemonstrations:
    """Stream of solved tasks with short programs, and of edits of programs of any length."""

    def __init__(
        self,
        *,
        solved_lines: Sequence[int] = (1, 4),
        edited_lines: Sequence[int] = (1, 12),
        proposals: float = 0.3,
    ) -> None:
        """Args:
        solved_lines: Minimum and maximum lines of the programs that solvers are shown. Programs
            with one more line are half as frequent, so that accuracy falls smoothly.
        edited_lines: Minimum and maximum lines of the programs that proposers are shown.
        proposals: Fraction of the demonstrations that are proposals.
        """
        low, high = solved_lines
        self.solved = [Domain(operations=(length, length)) for length in range(low, high + 1)]
        low, self.longest = edited_lines
        self.edited = Domain(operations=(low, self.longest))
        self.proposals = proposals
        self.exclude = sources_of(_all_held_out())

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end."""
        while True:
            yield self._proposal(rng) if rng.random() < self.proposals else self._solution(rng)

    def _solution(self, rng: Random) -> Demonstration:
        weights = [2.0**-index for index in range(len(self.solved))]
        domain = rng.choices(self.solved, weights)[0]
        program, word = domain.program(rng, self.exclude), domain.word(rng)
        return worked_deduction(program, word)

    def _proposal(self, rng: Random) -> Demonstration:
        reference, word = self.edited.program(rng, self.exclude), self.edited.word(rng)
        new = edited(reference, rng, longest=self.longest)
        while new.source in self.exclude or new == reference:
            new = edited(reference, rng, longest=self.longest)
        return proposed_deduction(new, word, problem(reference, [self.edited.word(rng)]))

    def pieces(self) -> list[str]:
        """Return the fixed strings of prompts and completions, one token each."""
        return TinyDemonstrations().pieces()


def _all_held_out() -> list[Task]:
    by_lines = [held_out(lines=lines) for lines in HELD_OUT]
    by_depth = [held_out_depth(lines=lines, depth=depth) for lines, depth in DEPTHS]
    return [task for tasks in (*by_lines, *by_depth) for task in tasks]
