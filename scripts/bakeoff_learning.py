"""Learning in the bake-off: Adam's steps on a table of logits, and the choice of its learning rate.

The bake-offs in tables use it, so that all methods have the same tuning budget.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

RATES = (0.1, 0.3, 1.0)
"""Learning rates that are tried for each method."""
TUNING = (100, 101, 102)
"""Seeds on which the learning rate is chosen; no reported run has one of them."""

Curve = list[tuple[int, float]]
"""Completions played so far, and the exact expected return then."""


class Ascent:
    """Adam's steps up a gradient, with decay rates of 0.9 and 0.99."""

    def __init__(self, rate: float) -> None:
        """`rate`: the learning rate."""
        self.rate, self.steps = rate, 0
        self.first = self.second = np.zeros(())

    def step(self, gradient: np.ndarray) -> np.ndarray:
        """Return the change of the logits, in the shape of their gradient."""
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.99 * self.second + 0.01 * gradient**2
        mean = self.first / (1 - 0.9**self.steps)
        direction = mean / (np.sqrt(self.second / (1 - 0.99**self.steps)) + 1e-8)
        change: np.ndarray = self.rate * direction
        return change


def area(values: Sequence[float]) -> float:
    """Return the area under a learning curve: the mean over all steps.

    Args:
        values: [steps + 1] expected returns, before the first step and after each step.
    """
    return float(np.mean(values[1:]))


def area_by_cost(curve: Curve, budget: int) -> float:
    """Return the mean return over the completions of a budget. It is constant between updates."""
    total = 0.0
    for (start, value), (end, _) in zip(curve, [*curve[1:], (budget, 0.0)], strict=True):
        total += value * max(0, min(end, budget) - min(start, budget))
    return total / budget


def last_within(curve: Curve, budget: int) -> float:
    """Return the return after the last step within the budget."""
    return [value for cost, value in curve if cost <= budget][-1]


def add_run_options(parser: argparse.ArgumentParser, *, seeds: int, unit: str) -> None:
    """Add the options of runs that have one budget, and of the file of their numbers.

    Args:
        parser: Parser of the command.
        seeds: Number of seeds that are reported, by default.
        unit: Name of the things that the budget counts.
    """
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--budget", type=int, default=2880, help=f"{unit} of a run")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--json", type=Path, help="file for all numbers; table and draw read it")
    parser.add_argument("--folder", type=Path, default=Path(), help="folder of the pictures (draw)")


def kept_rows(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of the file of --json; end with a usage error if no file is named."""
    if not options.json:
        parser.error(f"{options.what} needs --json FILE, the file of an earlier run")
    rows: list[dict[str, Any]] = json.loads(options.json.read_text())
    return rows


def best_rate(rates: Sequence[float], area_of: Callable[[float, int], float]) -> float:
    """Return the learning rate with the largest sum of areas over the seeds of the tuning.

    Args:
        rates: Learning rates to try; a single one needs no trial.
        area_of: Makes a run with a learning rate and a seed, and returns its area.
    """
    if len(rates) == 1:
        return rates[0]
    return max(rates, key=lambda rate: sum(area_of(rate, seed) for seed in TUNING))
