"""Simulation of the coverage and the width of the intervals of studies.

Proportions: each task has its own probability of success, drawn from a beta distribution with mean
`rate`; `spread` is the variance of the probabilities over tasks, as a fraction of the largest
possible variance (0: all tasks are alike, 1: every task is solved always or never). Each task has
some episodes, which succeed or fail. The truth is the mean probability over the distribution of
tasks; with one task, it is the probability of this task.

Pairs of runs: each run learns the first of two codes with probability `rate`, and understands only
runs with its own code; with the other code the metric is lower by its whole range. The truth is the
gap of self-play to cross-play between two new runs.

For comparison: the percentile bootstrap over tasks (with one task: over episodes), and for the gap
the jackknife over runs. These two methods are not part of the library.

Usage: python scripts/check_intervals.py [--simulations 1000] [--json FILE]
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from selfplay.study.stats.bootstrap import Draws
from selfplay.study.stats.pairs import between, over_pairs
from selfplay.study.stats.proportions import student

FEW = tuple((tasks, episodes) for tasks in (1, 2, 3) for episodes in (4, 8))
MANY = ((5, 8), (9, 8), (20, 8), (50, 8), (200, 4))
RATES = (0.1, 0.3, 0.5, 0.8, 0.95)
SPREADS = (0.0, 0.1, 0.3, 0.6, 1.0)
RUNS = (3, 4, 5, 6, 7, 8)
CODES = (0.5, 0.6, 0.7, 0.8, 0.9)
RESAMPLES = 400
FEWER = 5
"""Divisor of the number of simulations with many tasks, whose outcomes rarely repeat."""

Ends = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Coverage and width of the intervals in the simulations of one setting."""

    held: float
    """Fraction of intervals that contain the truth."""
    width: float
    """Mean width."""
    held_before: float
    """Fraction of intervals of the simpler method that contain the truth."""
    width_before: float
    """Mean width of the intervals of the simpler method."""


def proportion(
    tasks: int, episodes: int, rate: float, spread: float, *, simulations: int, seed: int = 0
) -> Coverage:
    """Return the coverage of the interval of a 0/1 metric."""
    rng = np.random.default_rng([seed, tasks, episodes, round(1000 * rate), round(1000 * spread)])
    chances = _chances(rng, rate, spread, (simulations, tasks))
    found = rng.binomial(episodes, chances)
    truths = chances[:, 0] if tasks == 1 else np.full(simulations, rate)
    ends = [_proportion(tuple(sorted(each.tolist())), episodes) for each in found]
    before = [_percentile(tuple(sorted(each.tolist())), episodes) for each in found]
    return _summary(truths, ends, before)


def gap(runs: int, rate: float, *, simulations: int, noise: float = 0.0, seed: int = 0) -> Coverage:
    """Return the coverage of the interval over runs of the gap; `noise` is the standard error of a
    cell."""
    rng = np.random.default_rng([seed, runs, round(1000 * rate), round(1000 * noise)])
    ends, before = [], []
    for _ in range(simulations):
        codes = rng.random(runs) < rate
        means = (codes[:, None] == codes[None]).astype(float)
        means = np.clip(means + noise * rng.normal(size=means.shape), 0.0, 1.0)
        (found,) = [each for each in over_pairs(means, (0.0, 1.0)) if each.name.startswith("gap")]
        ends.append((found.low, found.high))
        before.append(_jackknife(means))
    return _summary(np.full(simulations, 2 * rate * (1 - rate)), ends, before)


def _chances(
    rng: np.random.Generator, rate: float, spread: float, shape: tuple[int, int]
) -> np.ndarray:
    if spread == 0:
        return np.full(shape, rate)
    if spread == 1:
        return (rng.random(shape) < rate).astype(float)
    size = (1 - spread) / spread
    return rng.beta(rate * size, (1 - rate) * size, size=shape)


@lru_cache(maxsize=100_000)
def _proportion(successes: tuple[int, ...], episodes: int) -> Ends:
    values = [float(n < count) for count in successes for n in range(episodes)]
    tasks = [str(task) for task in range(len(successes)) for _ in range(episodes)]
    found = Draws(tasks=tasks).mean("x", values)
    return found.low, found.high


@lru_cache(maxsize=100_000)
def _percentile(successes: tuple[int, ...], episodes: int) -> Ends:
    """Draw tasks again; with fewer than ten tasks, draw in each one episode fewer than it has."""
    rng, count = np.random.default_rng(0), len(successes)
    rates = np.array(successes) / episodes
    if count >= 10:
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES) @ rates / count
    else:
        within = rng.binomial(episodes - 1, rates, size=(RESAMPLES, count)) / (episodes - 1)
        drawn = within.mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def _jackknife(means: np.ndarray) -> Ends:
    count = len(means)
    own = np.diagonal(means)
    kernel = (own[:, None] + own[None]) / 2 - (means + means.T) / 2
    kept = [np.delete(np.arange(count), out) for out in range(count)]
    left = np.array([between(kernel[np.ix_(each, each)]) for each in kept])
    variance = (count - 1) / count * float(((left - left.mean()) ** 2).sum())
    value, half = between(kernel), student(count - 1) * variance**0.5
    return value - half, value + half


def _summary(truths: np.ndarray, ends: Sequence[Ends], before: Sequence[Ends]) -> Coverage:
    held, width = [], []
    for found in (ends, before):
        low, high = np.array(found).T
        held.append(float(((low <= truths + 1e-9) & (truths <= high + 1e-9)).mean()))
        width.append(float((high - low).mean()))
    return Coverage(held=held[0], width=width[0], held_before=held[1], width_before=width[1])


def proportions(simulations: int) -> Iterator[tuple[str, str, Coverage]]:
    """Yield (tasks x episodes, rate and spread, coverage) of all settings."""
    for tasks, episodes in (*FEW, *MANY):
        count = simulations if (tasks, episodes) in FEW else max(simulations // FEWER, 1)
        for rate in RATES:
            for spread in SPREADS:
                found = proportion(tasks, episodes, rate, spread, simulations=count)
                yield f"{tasks} x {episodes}", f"rate {rate}, spread {spread}", found


def gaps(simulations: int) -> Iterator[tuple[str, str, Coverage]]:
    """Yield (runs, rate and noise, coverage) of all settings."""
    for runs in RUNS:
        for rate in CODES:
            for noise in (0.0, 0.05):
                found = gap(runs, rate, simulations=simulations, noise=noise)
                yield f"{runs} runs", f"rate {rate}, noise {noise}", found


def show(
    title: str,
    of: Callable[[int], Iterator[tuple[str, str, Coverage]]],
    simulations: int,
) -> list[dict[str, object]]:
    """Print the worst and the mean of each size; return the results of all settings."""
    rows: list[dict[str, object]] = []
    sizes: dict[str, list[tuple[str, Coverage]]] = {}
    for size, setting, found in of(simulations):
        rows.append({"of": title, "size": size, "setting": setting, **asdict(found)})
        sizes.setdefault(size, []).append((setting, found))
    print(f"\n{title}\n")
    print("| size | least coverage | where | mean width | least, simpler method | its mean width |")
    print("|---|---|---|---|---|---|")
    for size, all_of in sizes.items():
        where, worst = min(all_of, key=lambda each: each[1].held)
        least = min(found.held_before for _, found in all_of)
        widths = [
            np.mean([getattr(found, name) for _, found in all_of])
            for name in ("width", "width_before")
        ]
        print(
            f"| {size} | {worst.held:.3f} | {where} | {widths[0]:.2f} | {least:.3f} | "
            f"{widths[1]:.2f} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where every setting is written")
    options = parser.parse_args()
    rows = show("0/1 metric, tasks x episodes of each", proportions, options.simulations)
    rows += show("Gap of cross-play over runs of two codes", gaps, options.simulations)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
