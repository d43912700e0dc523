"""Small programming problems in two steps, for agents that write one program together.

A problem applies a step to every number of a list, then a fold to the list: the step is meant for a
helper function, the fold for the requested function. The pair of step and fold decides if a problem
is held out, so that the splits share no problem.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from arenas.splits import Split
from selfplay.rng import derive
from selfplay.types import Task

ENTRY = "f"
TEXT = "Given a list of numbers, take {step} each number, and return {fold} of the results."

STEPS: Mapping[str, Callable[[int], int]] = {
    "the square of": lambda x: x * x,
    "twice": lambda x: 2 * x,
    "three more than": lambda x: x + 3,
    "the negative of": lambda x: -x,
    "the last digit of": lambda x: abs(x) % 10,
    "the distance from 5 of": lambda x: abs(x - 5),
}
"""Functions that are applied to every number, by their description."""

FOLDS: Mapping[str, Callable[[list[int]], Any]] = {
    "the sum": sum,
    "the largest": max,
    "the smallest": min,
    "the sorted list": sorted,
    "the number of different values": lambda xs: len(set(xs)),
    "the first minus the last": lambda xs: xs[0] - xs[-1],
}
"""Functions that are applied to the list of results, by their description."""


def is_held_out(step: str, fold: str) -> bool:
    """Return True for one pair in six: each step and each fold is in one held-out pair."""
    steps, folds = list(STEPS), list(FOLDS)
    return (steps.index(step) + folds.index(fold)) % 6 == 0


def problems(*, count: int, split: Split = "train", tests: int = 6, seed: int = 0) -> list[Task]:
    """Return `count` problems, each with `tests` tests on its own numbers.

    Args:
        count: Number of tasks.
        split: train or held_out.
        tests: Tests of a problem.
        seed: Seed of the draw.
    """
    if count < 1 or tests < 1:
        raise ValueError("count and tests are at least 1")
    pairs = [
        (step, fold)
        for step in STEPS
        for fold in FOLDS
        if is_held_out(step, fold) == (split == "held_out")
    ]
    return [
        _problem(Random(derive(seed, split, n)), *pairs[n % len(pairs)], n, tests)
        for n in Random(derive(seed, "order", split)).sample(range(count), count)
    ]


def _problem(rng: Random, step: str, fold: str, number: int, tests: int) -> Task:
    cases = []
    for _ in range(tests):
        values = [rng.randint(-20, 20) for _ in range(rng.randint(1, 6))]
        cases.append([repr(values), repr(FOLDS[fold]([STEPS[step](x) for x in values]))])
    text = TEXT.format(step=step, fold=fold)
    payload = {"text": text, "entry": ENTRY, "tests": cases, "step": step, "fold": fold}
    return Task(id=f"{step} / {fold} / {number}", type="two_steps", payload=payload)
