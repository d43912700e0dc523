"""Programs in which some kinds of line are rare, so that a proposer can choose what to practise.

In the demonstrations of both roles, a line that only moves or copies letters (RARE) seldom occurs
in a program. So after the warm start solvers are weak at these lines, and proposers seldom write
them.
"""

from collections.abc import Collection, Iterator
from random import Random

from arenas.absolute_zero.arena import programs_of, sources_of
from arenas.absolute_zero.demonstrations import (
    TinyDemonstrations,
    proposed_deduction,
    worked_deduction,
)
from arenas.absolute_zero.tiny_python import (
    LINES,
    OPERATIONS,
    Domain,
    Operation,
    Program,
    ProgramLine,
    problem,
    task_of,
)
from selfplay.errors import ConfigError
from selfplay.types import Demonstration, Task

MOVED = (
    *(operation for operation in OPERATIONS if not operation.takes_letter),
    Operation(
        name="swap halves",
        source="a[2:] + a[:2]",
        run=lambda a, _: a[2:] + a[:2],
        undo=lambda a: a[-2:] + a[:-2],
    ),
    Operation(
        name="repeat first half",
        source="a[:2] + a[:2]",
        run=lambda a, _: a[:2] + a[:2],
        undo=lambda a: a,
    ),
    Operation(
        name="repeat last half",
        source="a[2:] + a[2:]",
        run=lambda a, _: a[2:] + a[2:],
        undo=lambda a: a,
    ),
    Operation(
        name="copy first",
        source="a[:-1] + a[:1]",
        run=lambda a, _: a[:-1] + a[:1],
        undo=lambda a: a,
    ),
    Operation(
        name="copy last",
        source="a[-1:] + a[1:]",
        run=lambda a, _: a[-1:] + a[1:],
        undo=lambda a: a,
    ),
)
"""Operations that move or copy letters of a string of four letters, and write no new letter."""
RARE = tuple(ProgramLine(operation=operation) for operation in MOVED)
"""Lines of the rare kinds, one of each."""
COMMON = tuple(line for line in LINES.values() if line.letter)
"""Lines of the common kinds: four operations that write a letter, with ten letters each."""
HELD_OUT = (0, 1)
"""Numbers of rare lines in the held-out programs."""
LENGTH = 2
"""Number of lines of every program."""


def program(rng: Random, *, rare: float, exclude: Collection[str] = ()) -> Program:
    """Return a random program of `LENGTH` lines, of which each is rare with probability `rare`."""
    while True:
        drawn = Program(lines=tuple(_line(rng, rng.random() < rare) for _ in range(LENGTH)))
        if drawn.source not in exclude:
            return drawn


def _line(rng: Random, rare: bool) -> ProgramLine:
    """Return a random rare or common line; all lines of the class are equally likely."""
    return rng.choice(RARE if rare else COMMON)


def held_out(*, rare_lines: int, count: int = 60, seed: int = 20261129) -> list[Task]:
    """Return tasks to find the output of different programs with `rare_lines` rare lines.

    Args:
        rare_lines: Number of rare lines of a program, one of HELD_OUT.
        count: Number of tasks.
        seed: Seed of the draw.
    Raises:
        ConfigError: For another number of rare lines.
    """
    if rare_lines not in HELD_OUT:
        raise ConfigError(f"rare_lines: {rare_lines} is not one of {HELD_OUT}")
    rng, domain = Random(seed + rare_lines), Domain()
    drawn: dict[str, Program] = {}
    while len(drawn) < count:
        flags = [index < rare_lines for index in range(LENGTH)]
        rng.shuffle(flags)
        new = Program(lines=tuple(_line(rng, rare) for rare in flags))
        drawn[new.source] = new
    return [task_of("deduction", new, [domain.word(rng)]) for new in drawn.values()]


def shown(*, rare: float, count: int, seed: int) -> list[Task]:
    """Return tasks like those of the demonstrations, without held-out programs.

    Args:
        rare: Probability that a line is rare.
        count: Number of tasks.
        seed: Seed of the draw.
    """
    rng, domain, exclude = Random(seed), Domain(), sources_of(_all_held_out())
    drawn: dict[str, Program] = {}
    while len(drawn) < count:
        new = program(rng, rare=rare, exclude=exclude)
        drawn[new.source] = new
    return [task_of("deduction", new, [domain.word(rng)]) for new in drawn.values()]


def forbidden() -> frozenset[str]:
    """Return the normal forms of all held-out programs, which a proposal may not have."""
    return programs_of(_all_held_out())


class RareDemonstrations:
    """Stream of solved tasks and of proposals with the same distribution of programs."""

    def __init__(
        self, *, solved_rare: float = 0.06, proposed_rare: float = 0.06, proposals: float = 0.3
    ) -> None:
        """Args:
        solved_rare: Probability that a line of a solved program is rare.
        proposed_rare: Probability that a line of a proposed program is rare.
        proposals: Fraction of the demonstrations that are proposals.
        """
        self.solved_rare, self.proposed_rare = solved_rare, proposed_rare
        self.proposals = proposals
        self.domain, self.exclude = Domain(), sources_of(_all_held_out())

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end."""
        while True:
            yield self._proposal(rng) if rng.random() < self.proposals else self._solution(rng)

    def _program(self, rng: Random, rare: float) -> Program:
        return program(rng, rare=rare, exclude=self.exclude)

    def _solution(self, rng: Random) -> Demonstration:
        new, word = self._program(rng, self.solved_rare), self.domain.word(rng)
        return worked_deduction(new, word)

    def _proposal(self, rng: Random) -> Demonstration:
        new, word = self._program(rng, self.proposed_rare), self.domain.word(rng)
        reference = problem(self._program(rng, self.proposed_rare), [self.domain.word(rng)])
        return proposed_deduction(new, word, reference)

    def pieces(self) -> list[str]:
        """Return the fixed strings of prompts and completions, one token each."""
        new = [line.source for line in RARE] + [line.operation.name for line in RARE]
        return list(dict.fromkeys([*TinyDemonstrations().pieces(), *new]))


def _all_held_out() -> list[Task]:
    return [task for number in HELD_OUT for task in held_out(rare_lines=number)]
