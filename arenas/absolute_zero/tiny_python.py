"""A sub-language of Python that a model of a million parameters can learn step by step.

A program rewrites one short lowercase string, with one simple operation per line::

    def f(a):
        a = a[::-1]
        a = 'j' + a[1:]
        return a

One operation is easy for the model; two to four of them without intermediate steps are not. So a
model that has seen both ways to answer (directly, and line by line) can discover that intermediate
steps raise its reward.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from arenas.absolute_zero.arena import solve_task
from selfplay.types import Task

LETTERS = "abcdefghij"
WRITTEN = "*"  # stands for any letter that a line writes
FILLER = "a"  # replaces a lost letter when a line is undone: any letter would be correct
HEADER = "def f(a):\n"
FOOTER = "    return a"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One kind of line: its name, its source, and how to run and undo it.

    name: the name in messages, without the letter.
    source: the right-hand side; `{}` is the place of the letter, if there is one.
    run: (value, letter) -> value.
    undo: value -> another value, from which `run` makes the first one, if there is such a value.
    """

    name: str
    source: str
    run: Callable[[str, str], str]
    undo: Callable[[str], str]

    @property
    def takes_letter(self) -> bool:
        """True if the line contains a letter."""
        return "{}" in self.source


# Every operation keeps the length, so that each letter of a value comes from one fixed position of
# the previous value; a model of this size learns that in a minute.
OPERATIONS = (
    Operation(name="reverse", source="a[::-1]", run=lambda a, _: a[::-1], undo=lambda a: a[::-1]),
    Operation(
        name="rotate left",
        source="a[1:] + a[:1]",
        run=lambda a, _: a[1:] + a[:1],
        undo=lambda a: a[-1:] + a[:-1],
    ),
    Operation(
        name="rotate right",
        source="a[-1:] + a[:-1]",
        run=lambda a, _: a[-1:] + a[:-1],
        undo=lambda a: a[1:] + a[:1],
    ),
    Operation(
        name="push last",
        source="a[1:] + '{}'",
        run=lambda a, letter: a[1:] + letter,
        undo=lambda a: FILLER + a[:-1],
    ),
    Operation(
        name="push first",
        source="'{}' + a[:-1]",
        run=lambda a, letter: letter + a[:-1],
        undo=lambda a: a[1:] + FILLER,
    ),
    Operation(
        name="set first",
        source="'{}' + a[1:]",
        run=lambda a, letter: letter + a[1:],
        undo=lambda a: FILLER + a[1:],
    ),
    Operation(
        name="set last",
        source="a[:-1] + '{}'",
        run=lambda a, letter: a[:-1] + letter,
        undo=lambda a: a[:-1] + FILLER,
    ),
)


@dataclass(frozen=True, kw_only=True)
class ProgramLine:
    """One line of a program: an operation and its letter ('' if it takes none)."""

    operation: Operation
    letter: str = ""

    @property
    def source(self) -> str:
        """Indented Python source of the line."""
        return f"    a = {self.operation.source.format(self.letter)}\n"


LINES = {
    line.source: line
    for operation in OPERATIONS
    for line in (
        ProgramLine(operation=operation, letter=letter)
        for letter in (LETTERS if operation.takes_letter else ("",))
    )
}
"""Source to line, for all lines of the sub-language."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A straight-line program over one string."""

    lines: tuple[ProgramLine, ...]

    @classmethod
    def parse(cls, source: str) -> "Program | None":
        """Return the program with this source, or None if it is outside the sub-language."""
        found = [LINES.get(line) for line in source.splitlines(keepends=True)[1:-1]]
        program = cls(lines=tuple(line for line in found if line is not None))
        return program if program.source == source else None

    @property
    def source(self) -> str:
        """Python source of the program."""
        return HEADER + "".join(line.source for line in self.lines) + FOOTER

    @property
    def message(self) -> str:
        """Names of the operations without letters: the hint of an induction task."""
        return ", ".join(line.operation.name for line in self.lines)

    def trace(self, value: str) -> list[str]:
        """Return the value after each line."""
        values = []
        for line in self.lines:
            value = line.operation.run(value, line.letter)
            values.append(value)
        return values

    def depth(self, length: int = 4) -> int:
        """Return the depth of composition for inputs of `length` letters.

        Each letter of the output has a chain of lines: the line that wrote the letter, if any, and
        the lines that moved it to another place. The depth is the length of the longest chain.
        Letters that are lost before the output do not count.
        """
        places = "".join(chr(0x100 + place) for place in range(length))  # different from WRITTEN
        chains = [0] * length
        for line in self.lines:
            origins = line.operation.run(places, WRITTEN)
            chains = [
                1 if origin == WRITTEN else chains[places.index(origin)] + (origin != place)
                for place, origin in zip(places, origins, strict=True)
            ]
        return max(chains)

    def back_trace(self, value: str) -> list[str]:
        """Return the value before each line, from the last line to the first."""
        values = []
        for line in reversed(self.lines):
            value = line.operation.undo(value)
            values.append(value)
        return values

    def with_holes(self) -> "Program":
        """Return the program with its letters replaced by the digits 1, 2, ... in order."""
        lines, count = [], 0
        for line in self.lines:
            if line.operation.takes_letter:
                count += 1
                line = ProgramLine(operation=line.operation, letter=str(count))
            lines.append(line)
        return Program(lines=tuple(lines))

    def canonical(self, value: str) -> "Program":
        """Return the program with each letter that does not affect f(value) set to the filler."""
        left = self.with_holes().trace(value)[-1]
        lines, count = [], 0
        for line in self.lines:
            if line.operation.takes_letter:
                count += 1
                line = ProgramLine(
                    operation=line.operation, letter=line.letter if str(count) in left else FILLER
                )
            lines.append(line)
        return Program(lines=tuple(lines))


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Distribution of programs and inputs.

    operations: minimum and maximum lines of a program.
    length: letters of an input.
    letters: alphabet of inputs and programs.
    """

    operations: tuple[int, int] = (2, 4)
    length: int = 4
    letters: str = LETTERS

    def word(self, rng: Random) -> str:
        """Return a random input."""
        return "".join(rng.choices(self.letters, k=self.length))

    def words(self, rng: Random, count: int) -> list[str]:
        """Return `count` different inputs."""
        words: dict[str, None] = {}
        while len(words) < count:
            words[self.word(rng)] = None
        return list(words)

    def program(self, rng: Random, exclude: Collection[str] = ()) -> Program:
        """Return a random program whose source is not in `exclude`."""
        while True:
            operations = rng.choices(OPERATIONS, k=rng.randint(*self.operations))
            program = Program(
                lines=tuple(
                    ProgramLine(
                        operation=operation,
                        letter=rng.choice(self.letters) if operation.takes_letter else "",
                    )
                    for operation in operations
                )
            )
            if program.source not in exclude:
                return program


def problem(program: Program, inputs: Sequence[str]) -> dict[str, Any]:
    """Return a problem in the arena's format: program, inputs and outputs as literals, message."""
    return {
        "program": program.source,
        "inputs": [repr(value) for value in inputs],
        "outputs": [repr(program.trace(value)[-1]) for value in inputs],
        "message": program.message,
    }


def task_of(kind: str, program: Program, inputs: Sequence[str]) -> Task:
    """Return a task to solve without its outputs: the arena's executor computes them in `setup`."""
    content = problem(program, inputs)
    del content["outputs"]
    return solve_task(kind, content, normal=program.source)  # such a program is its normal form


def held_out(*, per_type: int = 100, pairs: int = 4, seed: int = 20261121) -> list[Task]:
    """Return the held-out tasks, `per_type` of each type, with different programs.

    The tasks have no outputs: the arena's executor computes them in `setup`.

    Args:
        per_type: Tasks of each type.
        pairs: Input-output pairs of an induction task.
        seed: Seed of the draw.
    """
    return fixed_tasks(per_type=per_type, pairs=pairs, seed=seed, exclude=())


def fixed_tasks(*, per_type: int, pairs: int, seed: int, exclude: Sequence[Task]) -> list[Task]:
    """Return tasks to solve, `per_type` of each type, with different programs.

    The programs have the distribution of those in the demonstrations. `held_out` draws the tasks of
    the evaluation with this function, and `curriculum=tiny_programs` draws the fixed tasks that are
    compared with self-play. The tasks have no outputs: the arena's executor computes them in
    `setup`.

    Args:
        per_type: Tasks of each type.
        pairs: Input-output pairs of an induction task.
        seed: Seed of the draw.
        exclude: Tasks whose programs do not occur.
    """
    rng, domain = Random(seed), Domain()
    seen = {task.payload["program"] for task in exclude}
    tasks = []
    for kind in ("deduction", "abduction", "induction"):
        for _ in range(per_type):
            program = domain.program(rng, seen)
            seen.add(program.source)
            words = domain.words(rng, pairs if kind == "induction" else 1)
            tasks.append(task_of(kind, program, words))
    return tasks


def proposals(
    *, per_type: int = 50, pairs: int = 4, references: int = 2, seed: int = 20261122
) -> list[Task]:
    """Return tasks to propose with fixed references, for the evaluation of proposers.

    Args:
        per_type: Tasks of each type.
        pairs: Input-output pairs of an induction task.
        references: Number of references of a task.
        seed: Seed of the draw.
    """
    rng, domain = Random(seed), Domain()
    tasks = []
    for kind in ("deduction", "abduction", "induction"):
        for number in range(per_type):
            shown = [problem(domain.program(rng), domain.words(rng, 1)) for _ in range(references)]
            given = shown[0] if kind == "induction" else None
            payload = {
                "mode": "propose",
                "references": [] if given else shown,
                "given": given,
                "known": 0,
            }
            tasks.append(Task(id=f"{kind}-propose-{number}", type=kind, payload=payload))
    return tasks
