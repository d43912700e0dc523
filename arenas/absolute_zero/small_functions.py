"""Small functions of ordinary Python, for language models: demonstrations, seeds, held-out tasks.

A function changes its argument in up to two lines and returns an expression of it. Arguments are
numbers, words and lists. A hash of a function's text decides if the function is held out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from arenas.absolute_zero.arena import proposer_view, solve_task, solver_view
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
    draw: Callable[[Random], Any]
    changes: tuple[Expression, ...]
    """Expressions whose value is of the same type."""
    results: tuple[Expression, ...]
    """Expressions that a function can return."""


KINDS = (
    ArgumentKind(
        "x",
        lambda rng: rng.randint(0, 20),
        (
            Expression("x + {k}", lambda x, k, a: x + k),
            Expression("x - {k}", lambda x, k, a: x - k),
            Expression("x * {k}", lambda x, k, a: x * k),
        ),
        (
            Expression("x", lambda x, k, a: x),
            Expression("x > {k}", lambda x, k, a: x > k),
            Expression("x % {k}", lambda x, k, a: x % k),
            Expression("max(x, {k})", lambda x, k, a: max(x, k)),
            Expression("[x, x + {k}]", lambda x, k, a: [x, x + k]),
            Expression("str(x) + '{a}'", lambda x, k, a: str(x) + a),
        ),
    ),
    ArgumentKind(
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
    ArgumentKind(
        "xs",
        lambda rng: [rng.randint(0, 9) for _ in range(rng.randint(2, 4))],
        (
            Expression("sorted(xs)", lambda xs, k, a: sorted(xs)),
            Expression("xs[::-1]", lambda xs, k, a: xs[::-1]),
            Expression("xs + [{k}]", lambda xs, k, a: [*xs, k]),
        ),
        (
            Expression("xs", lambda xs, k, a: xs),
            Expression("sum(xs)", lambda xs, k, a: sum(xs)),
            Expression("max(xs) - min(xs)", lambda xs, k, a: max(xs) - min(xs)),
            Expression("xs[-1]", lambda xs, k, a: xs[-1]),
            Expression("[x * {k} for x in xs]", lambda xs, k, a: [x * k for x in xs]),
            Expression("[x for x in xs if x > {k}]", lambda xs, k, a: [x for x in xs if x > k]),
            Expression("len(xs) > {k}", lambda xs, k, a: len(xs) > k),
        ),
    ),
)


def is_held_out(program: str) -> bool:
    """Return True for one function in five, chosen by a hash of its text."""
    return derive("small function", program) % 5 == 0


def problem(rng: Random, *, held_out: bool = False) -> dict[str, Any]:
    """Return a random problem in the arena's format: program, inputs, outputs and no message."""
    while True:
        kind = rng.choice(KINDS)
        argument = value = kind.draw(rng)
        lines = []
        for _ in range(rng.randint(0, 2)):
            text, value = _applied(rng.choice(kind.changes), value, rng)
            lines.append(f"    {kind.name} = {text}\n")
        text, value = _applied(rng.choice(kind.results), value, rng)
        program = f"def f({kind.name}):\n" + "".join(lines) + f"    return {text}"
        if is_held_out(program) == held_out:
            found = {"program": program, "inputs": [repr(argument)], "outputs": [repr(value)]}
            return {**found, "message": ""}


def _applied(expression: Expression, value: Any, rng: Random) -> tuple[str, Any]:
    """Return the text of an expression with its number and letter, and its value."""
    number, letter = rng.randint(1, 9), rng.choice(LETTERS)
    text = expression.source.replace("{k}", str(number)).replace("{a}", letter)
    return text, expression.apply(value, number, letter)


def seeds(*, count: int = 16, seed: int = 0) -> list[Task]:
    """Return the initial deduction tasks of a buffer, which are not held out.

    Args:
        count: Number of tasks.
        seed: Seed of the draw.
    """
    rng = Random(derive(seed, "seeds"))
    return [solve_task("deduction", problem(rng)) for _ in range(count)]


def held_out(*, count: int = 100, seed: int = 20261121) -> list[Task]:
    """Return deduction tasks with held-out functions, all of which differ.

    Args:
        count: Number of tasks.
        seed: Seed of the draw.
    """
    rng, found = Random(seed), dict[str, Task]()
    while len(found) < count:
        content = problem(rng, held_out=True)
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
        shown = [problem(rng) for _ in range(references)]
        payload = {"mode": "propose", "references": shown, "given": None, "known": 0}
        tasks.append(Task(id=f"propose-{number}", type="deduction", payload=payload))
    return tasks


class SmallFunctionDemonstrations:
    """Stream of proposals and of right outputs, without held-out functions."""

    def __init__(self, *, references: int = 1) -> None:
        """`references` is the number of earlier functions that a proposer is shown."""
        if references < 0:
            raise ValueError(f"references is at least 0, not {references}")
        self.references = references

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end, a proposal and two solutions in turn."""
        while True:
            shown = [problem(rng) for _ in range(self.references)]
            proposed = problem(rng)
            yield Demonstration(
                role="proposer",
                observation=proposer_view("deduction", {"references": shown}, pairs=0),
                completion=f"```python\n{proposed['program']}\n```\n"
                f"```input\n{proposed['inputs'][0]}\n```",
            )
            for _ in range(2):
                solved = problem(rng)
                yield Demonstration(
                    role="solver",
                    observation=solver_view("deduction", solved),
                    completion=solved["outputs"][0],
                )
