"""Small functions of ordinary Python, for language models: demonstrations, seeds, held-out tasks.

A function changes its argument in one to three lines and returns an expression of it. Arguments are
numbers, words and lists. A hash of a function's text decides if the function is held out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from arenas.absolute_zero.arena import proposer_view, solve_task, solver_view
from arenas.absolute_zero.demonstrations import completion
from selfplay.rng import derive
from selfplay.types import Demonstration, Task

LETTERS = "abcdeo"

Apply = Callable[[Any, int, str], Any]
"""Function of (value, number of the line, letter of the line) that computes the line's result."""


@dataclass(frozen=True)
class Expression:
    """An expression of one line; `{k}` stands for a number and `{a}` for a letter."""

    source: str
    apply: Apply


@dataclass(frozen=True)
class ArgumentKind:
    """One type of argument, with the lines that a function of such an argument can have."""

    name: str
    """Name of the argument in the program."""
    draw: Callable[[Random], Any]
    changes: tuple[Expression, ...]
    """Expressions whose value is of the same type."""
    results: tuple[Expression, ...]
    """Expressions that a function can return."""


KINDS = {
    "number": ArgumentKind(
        "x",
        lambda rng: rng.randint(3, 20),
        (
            Expression("x + {k}", lambda x, k, a: x + k),
            Expression("x - {k}", lambda x, k, a: x - k),
        ),
        (
            Expression("x", lambda x, k, a: x),
            Expression("[x, x]", lambda x, k, a: [x, x]),
            Expression("x > {k}", lambda x, k, a: x > k),
        ),
    ),
    "word": ArgumentKind(
        "s",
        lambda rng: "".join(rng.choices(LETTERS, k=rng.randint(2, 4))),
        (
            Expression("s + '{a}'", lambda s, k, a: s + a),
            Expression("s[::-1]", lambda s, k, a: s[::-1]),
            Expression("s.replace('{a}', 'z')", lambda s, k, a: s.replace(a, "z")),
        ),
        (
            Expression("s", lambda s, k, a: s),
            Expression("len(s)", lambda s, k, a: len(s)),
            Expression("s[0]", lambda s, k, a: s[0]),
            Expression("s.count('{a}')", lambda s, k, a: s.count(a)),
            Expression("s * 2", lambda s, k, a: s * 2),
            Expression("s.upper()", lambda s, k, a: s.upper()),
            Expression("'{a}' in s", lambda s, k, a: a in s),
        ),
    ),
    "list": ArgumentKind(
        "xs",
        lambda rng: [rng.randint(0, 9) for _ in range(rng.randint(2, 4))],
        (
            Expression("sorted(xs)", lambda xs, k, a: sorted(xs)),
            Expression("xs[::-1]", lambda xs, k, a: xs[::-1]),
            Expression("xs + [{k}]", lambda xs, k, a: [*xs, k]),
            Expression("[{k}] + xs", lambda xs, k, a: [k, *xs]),
            Expression("xs[1:]", lambda xs, k, a: xs[1:]),
        ),
        (
            Expression("xs", lambda xs, k, a: xs),
            Expression("xs + xs", lambda xs, k, a: xs + xs),
            Expression("len(xs)", lambda xs, k, a: len(xs)),
            Expression("max(xs, default=0)", lambda xs, k, a: max(xs, default=0)),
        ),
    ),
}

SHOWN = ("number", "list", "list")
"""Kinds of the arguments in demonstrations and seeds, lists twice as often as numbers. Functions of
words are not shown: a solver meets them in an evaluation, or if a proposer writes some."""


def is_held_out(program: str) -> bool:
    """Return True for one function in five, chosen by a hash of its text."""
    return derive("small function", program) % 5 == 0


@dataclass(frozen=True)
class SmallFunction:
    """A function with an input, and the values that it computes."""

    name: str
    """Name of the argument."""
    argument: Any
    """The input."""
    lines: tuple[tuple[str, Any], ...]
    """Expressions of the lines that change the argument, each with its value."""
    result: tuple[str, Any]
    """Expression that is returned, with its value."""

    @property
    def program(self) -> str:
        """The source code."""
        changes = "".join(f"    {self.name} = {text}\n" for text, _ in self.lines)
        return f"def f({self.name}):\n{changes}    return {self.result[0]}"

    def problem(self) -> dict[str, Any]:
        """Return the problem in the arena's format: program, inputs, outputs and no message."""
        found = {"inputs": [repr(self.argument)], "outputs": [repr(self.result[1])]}
        return {"program": self.program, **found, "message": ""}

    def trace(self) -> str:
        """Return the value of the argument at the beginning and after each line, one per line."""
        values = [self.argument, *(value for _, value in self.lines)]
        return "\n".join(f"{self.name} = {value!r}" for value in values)


def function(rng: Random, *, kinds: Sequence[str] = SHOWN, held_out: bool = False) -> SmallFunction:
    """Return a random function with a random input.

    Args:
        rng: Source of the draws.
        kinds: Names in `KINDS`, drawn with equal probability.
        held_out: Whether the function is one of the held-out functions.
    """
    while True:
        kind = KINDS[rng.choice(kinds)]
        argument = value = kind.draw(rng)
        lines = []
        for _ in range(rng.randint(1, 3)):
            text, value = _applied(rng.choice(kind.changes), value, rng)
            lines.append((text, value))
        result = _applied(rng.choice(kind.results), value, rng)
        found = SmallFunction(kind.name, argument, tuple(lines), result)
        if is_held_out(found.program) == held_out:
            return found


def _applied(expression: Expression, value: Any, rng: Random) -> tuple[str, Any]:
    """Return the text of an expression with its number and letter, and its value."""
    number, letter = rng.randint(1, 5), rng.choice(LETTERS)
    text = expression.source.replace("{k}", str(number)).replace("{a}", letter)
    return text, expression.apply(value, number, letter)


def seeds(*, count: int = 16, seed: int = 0) -> list[Task]:
    """Return the initial deduction tasks of a buffer, which are not held out.

    Args:
        count: Number of tasks.
        seed: Seed of the draw.
    """
    rng = Random(derive(seed, "seeds"))
    return [solve_task("deduction", function(rng).problem()) for _ in range(count)]


def held_out(*, count: int = 200, kinds: Sequence[str] = SHOWN, seed: int = 20261121) -> list[Task]:
    """Return deduction tasks with held-out functions, all of which differ.

    Args:
        count: Number of tasks.
        kinds: Kinds of arguments: `number`, `word`, `list`. A kind that is named twice is drawn
            twice as often.
        seed: Seed of the draw.
    Raises:
        ValueError: A kind is unknown, or none is named.
    """
    if not kinds or not KINDS.keys() >= set(kinds):
        raise ValueError(f"kinds are one or more of {', '.join(KINDS)}, not {list(kinds)}")
    rng, found = Random(seed), dict[str, Task]()
    while len(found) < count:
        content = function(rng, kinds=kinds, held_out=True).problem()
        del content["outputs"]  # the arena's executor computes them in `setup`
        found.setdefault(content["program"], solve_task("deduction", content))
    return list(found.values())


def proposals(*, count: int = 40, references: int = 1, seed: int = 20261122) -> list[Task]:
    """Return tasks to propose with fixed references, for the evaluation of proposers.

    Args:
        count: Number of tasks.
        references: Number of references of a task.
        seed: Seed of the draw.
    """
    rng, tasks = Random(seed), []
    for number in range(count):
        shown = [function(rng).problem() for _ in range(references)]
        payload = {"mode": "propose", "references": shown, "given": None, "known": 0}
        tasks.append(Task(id=f"propose-{number}", type="deduction", payload=payload))
    return tasks


class SmallFunctionDemonstrations:
    """Stream of proposals and of right outputs, without held-out functions.

    The solutions have the form of a solver with `thinking: true`, the proposals that of a proposer
    with `thinking: false`.
    """

    def __init__(self, *, references: int = 1, worked_share: float = 0.5) -> None:
        """Args:
        references: Number of earlier functions that a proposer is shown.
        worked_share: Fraction of the solutions whose thought has the value of the argument after
            each line; the thought of the others is empty.
        """
        if references < 0:
            raise ValueError(f"references is at least 0, not {references}")
        if not 0 <= worked_share <= 1:
            raise ValueError(f"worked_share is a fraction from 0 to 1, not {worked_share}")
        self.references, self.worked_share = references, worked_share

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end, a proposal and four solutions in turn."""
        while True:
            shown = [function(rng).problem() for _ in range(self.references)]
            proposed = function(rng).problem()
            yield Demonstration(
                role="proposer",
                observation=proposer_view("deduction", {"references": shown}, pairs=0),
                completion=f"```python\n{proposed['program']}\n```\n"
                f"```input\n{proposed['inputs'][0]}\n```",
            )
            for _ in range(4):
                yield self._solution(function(rng), rng)

    def _solution(self, solved: SmallFunction, rng: Random) -> Demonstration:
        """Return the demonstration of a solver."""
        shown = solved.problem()
        thought = solved.trace() if rng.random() < self.worked_share else ""
        return Demonstration(
            role="solver",
            observation=solver_view("deduction", shown),
            completion=completion(shown["outputs"][0], thought),
        )
