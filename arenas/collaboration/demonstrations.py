"""Demonstrations of two agents that divide the work on one program, without a convention.

A problem of `arenas.collaboration.problems` applies a step to every number and folds the results.
There are several correct ways to divide the work between the helper's `aux` and the main function.
The two halves of one division fit each other; halves of different divisions nearly always fail
together. No prompt says which division to use. The warm start shows all divisions equally often,
and each agent draws its division independently. Some programs of the main agent do not use the
helper: they always pass the tests, and have a lower reward.
"""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from arenas.collaboration.arena import coder_view
from arenas.collaboration.code_reward import AUX
from arenas.collaboration.problems import ENTRY, FOLDS, STEPS, TEXT
from selfplay.types import Demonstration, Observation, Task

CODE: Mapping[str, str] = {
    "the square of": "x * x",
    "twice": "2 * x",
    "three more than": "x + 3",
    "the negative of": "-x",
    "the last digit of": "abs(x) % 10",
    "the distance from 5 of": "abs(x - 5)",
    "the sum": "sum(xs)",
    "the largest": "max(xs)",
    "the smallest": "min(xs)",
    "the sorted list": "sorted(xs)",
    "the number of different values": "len(set(xs))",
    "the first minus the last": "xs[0] - xs[-1]",
}
"""Steps as expressions of a number `x`; folds as expressions of a list `xs`."""

OF_ONE, OF_ALL, MAIN = f"def {AUX}(x):\n", f"def {AUX}(xs):\n", f"def {ENTRY}(xs):\n"
STEP_ALL, FOLD = "    xs = [{step} for x in xs]\n", "    return {fold}"

DIVISIONS: Mapping[str, tuple[str, str]] = {
    "one number": (
        f"{OF_ONE}    return {{step}}",
        f"{MAIN}    xs = [{AUX}(x) for x in xs]\n{FOLD}",
    ),
    "all numbers": (
        f"{OF_ALL}    return [{{step}} for x in xs]",
        f"{MAIN}    xs = {AUX}(xs)\n{FOLD}",
    ),
    "the fold": (f"{OF_ALL}{FOLD}", f"{MAIN}{STEP_ALL}    return {AUX}(xs)"),
    "one place": (
        f"def {AUX}(xs, i):\n    x = xs[i]\n    return {{step}}",
        f"{MAIN}    xs = [{AUX}(xs, i) for i in range(len(xs))]\n{FOLD}",
    ),
}
"""Per division of the work, the helper's code and the matching code of the main agent."""

ALONE = f"{MAIN}{STEP_ALL}{FOLD}"
"""Code of the main agent that does not use the helper."""

PARTS = ("helper", "main")


class DividedWork:
    """Stream of halves of programs; each agent draws its division independently."""

    def __init__(self, *, problems: Sequence[Task], alone: float = 0.1, again: float = 0.0) -> None:
        """Args:
        problems: Training tasks of `arenas.collaboration.problems`, so that no held-out problem is
            shown.
        alone: Fraction of the main agent's programs that do not use the helper.
        again: Fraction of demonstrations of a second turn, after two halves that did not fit: an
            agent repeats its half or writes the one that fits the other agent's. The choice is
            random, so that two agents which both change fail again.
        """
        if not 0 <= alone <= 1 or not 0 <= again <= 1:
            raise ValueError("alone and again are fractions, in [0, 1]")
        self.problems, self.alone, self.again = list(problems), alone, again

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end, equally many of both parts."""
        while True:
            problem, part = rng.choice(self.problems).payload, rng.randrange(2)
            mine, other = rng.sample(list(DIVISIONS.values()), 2)
            code = mine[part]
            if rng.random() < self.again:
                seen = _after(problem, part, mine, other)
                code = rng.choice((mine, other))[part]
            else:
                seen = coder_view(PARTS[part], problem)
                if PARTS[part] == "main" and rng.random() < self.alone:
                    code = ALONE
            yield Demonstration(
                role=PARTS[part], observation=seen, completion=written(code, problem)
            )

    def pieces(self) -> list[str]:
        """Return phrases of problems and words of programs; other text is split into letters."""
        before, between, after = TEXT.replace("{fold}", "{step}").split("{step}")
        phrases = [*(f"{part}: {before}" for part in PARTS), between, after, *STEPS, *FOLDS]
        words = ["    ", "def ", "return ", " for ", " in ", AUX, "xs"]
        functions = ["sum", "max", "min", "sorted", "len", "set", "abs", "range"]
        return [
            *phrases,
            *words,
            *functions,
            *(f" -> {end}" for end in ("passed", "wrong", FAILED)),
        ]


FAILED = "raised"
"""Usual outcome of a test of two halves that do not fit."""


def _after(
    problem: Mapping[str, Any], part: int, mine: Sequence[str], other: Sequence[str]
) -> Observation:
    """Return an agent's view after its half did not fit the other agent's."""
    helper, main = (mine, other) if part == 0 else (other, mine)
    return coder_view(
        PARTS[part],
        problem,
        helper=written(helper[0], problem),
        main=written(main[1], problem),
        outcomes=(FAILED,) * len(problem["tests"]),
        turn=2,
        turns=2,
    )


def written(code: str, problem: Mapping[str, Any]) -> str:
    """Return the program text of a template for a problem."""
    return code.format(step=CODE[problem["step"]], fold=CODE[problem["fold"]])
