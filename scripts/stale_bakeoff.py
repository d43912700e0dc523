"""Compares objectives on stale samples, in a game of words that can be enumerated.

A policy gets one of four tasks and writes a word of at most five letters of an alphabet of three;
it may end the word earlier. Each task has a target of one to four letters, so that completions
differ in length. The reward is 1 for the target. For any other word it is half of the fraction of
the target's letters with which the word begins. The policy is a table of logits by task and by
letters so far; its exact expected return is computed from all words.

A step draws 48 words, 12 of each task, with the weights of `lag` steps ago, and makes one step of
Adam on the objective of `selfplay.learner.objective`. Advantages are returns minus the mean of the
task's 12 words, for all objectives alike. The learning rate of each objective and lag is the one of
three with the best mean return over all steps in three seeds that are not reported.

- final: exact expected return at the end;
- area: its mean over all steps, the area under the learning curve;
- gain: the area minus that of the objective `reinforce` with the same seed and lag;
- clipped: fraction of the tokens whose ratio was bounded.

Means have Student's interval over seeds. `--draw` makes a picture of the gains for each lag above
0, from the file of an earlier `--json`.

Usage: python scripts/stale_bakeoff.py [--lags 0 2 8] [--objectives grpo cispo] [--seeds 12]
           [--steps 60] [--rates 0.1 0.3 1] [--json FILE]
       python scripts/stale_bakeoff.py --json FILE --draw FOLDER
"""

import argparse
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bakeoff_learning import RATES, Ascent, area, best_rate
from bakeoff_table import mean, table_head, table_row, write_picture
from word_game import Leaves, WordGame, gradient

from selfplay.learner.objective import PolicyLoss
from selfplay.study.stats.bootstrap import over_runs
from selfplay.types import Sample, Turn

GAME = WordGame(letters=3, longest=5, targets=((1,), (2, 0), (0, 1, 2), (1, 0, 2, 2)))
"""Game of all runs."""
GROUP = 12
"""Words of a task in a batch."""
TASKS = [task for task in range(len(GAME.targets)) for _ in range(GROUP)]
"""Task of each word of a batch."""

TOKEN = {"ratio": "token", "clip": "ppo", "low": 0.2}
OBJECTIVES: Mapping[str, Mapping[str, Any]] = {
    "reinforce": {"ratio": "none", "clip": "none", "aggregate": "token_mean"},
    "magrpo": {"ratio": "none", "clip": "none", "aggregate": "sequence_sum"},
    "magrpo, truncated": {
        "ratio": "none",
        "clip": "none",
        "aggregate": "sequence_sum",
        "correction": "truncated",
    },
    "magrpo, masked": {
        "ratio": "none",
        "clip": "none",
        "aggregate": "sequence_sum",
        "correction": "masked",
    },
    "ratio without clip": {"ratio": "token", "clip": "none", "aggregate": "token_mean"},
    "grpo": {**TOKEN, "high": 0.2, "aggregate": "sequence_mean"},
    "grpo, clip higher": {**TOKEN, "high": 0.28, "aggregate": "sequence_mean"},
    "grpo, token mean": {**TOKEN, "high": 0.2, "aggregate": "token_mean"},
    "dapo": {**TOKEN, "high": 0.28, "aggregate": "token_mean"},
    "dr_grpo": {**TOKEN, "high": 0.2, "aggregate": "constant", "length": GAME.longest},
    "ppo": {**TOKEN, "high": 0.2, "clip": "dual", "aggregate": "token_mean"},
    "cispo": {"ratio": "token", "clip": "cispo", "low": 1.0, "high": 4.0},
    "gspo": {
        "ratio": "sequence",
        "clip": "ppo",
        "low": 3e-4,
        "high": 4e-4,
        "aggregate": "sequence_mean",
    },
    "gspo, wide clip": {
        "ratio": "sequence",
        "clip": "ppo",
        "low": 0.2,
        "high": 0.28,
        "aggregate": "sequence_mean",
    },
}
"""Settings of `PolicyLoss` as the config group `objective` has them, and variants."""


def as_samples(words: Sequence[Turn]) -> list[Sample]:
    """Return the samples of a batch; the advantage is the reward minus the mean of the task."""
    pay = np.array([word.reward for word in words]).reshape(-1, GROUP)
    advantages = (pay - pay.mean(1, keepdims=True)).ravel()
    return [
        Sample(turn=word, advantage=float(advantage), group=str(task))
        for word, advantage, task in zip(words, advantages, TASKS, strict=True)
    ]


def learn(
    objective: PolicyLoss, leaves: Leaves, seed: int, *, lag: int, steps: int, rate: float
) -> tuple[list[float], float]:
    """Return the exact return before each step and after the last one, and the bounded tokens."""
    rng = np.random.default_rng([seed, 3])
    start = np.random.default_rng([seed, 4]).normal(size=GAME.shape)
    logits = torch.from_numpy(start)
    ascent, earlier = Ascent(rate), deque([logits], maxlen=lag + 1)
    values, bounded = [float(leaves.expected(logits))], 0.0
    for _ in range(steps):
        given = as_samples(GAME.sampled(earlier[0], TASKS, rng))
        found, fraction = gradient(GAME, objective, logits, given)
        logits = logits + torch.from_numpy(ascent.step(found.numpy()))
        earlier.append(logits)
        values.append(float(leaves.expected(logits)))
        bounded += fraction / steps
    return values, bounded


@dataclass(frozen=True, kw_only=True)
class ObjectiveRuns:
    """Runs of one objective at one lag, with the learning rate that the tuning chose."""

    rate: float
    """Learning rate."""
    curves: Sequence[Sequence[float]]
    """[seeds][steps + 1] exact expected returns."""
    clipped: float
    """Fraction of the tokens whose ratio was bounded."""
    rows: Sequence[dict[str, Any]]
    """All numbers for `--json`, a row for each seed."""


def objective_runs(
    name: str, leaves: Leaves, lag: int, options: argparse.Namespace
) -> ObjectiveRuns:
    """Return the runs of an objective of `OBJECTIVES`."""
    objective = PolicyLoss(**OBJECTIVES[name])

    def run(rate: float, seed: int) -> tuple[list[float], float]:
        return learn(objective, leaves, seed, lag=lag, steps=options.steps, rate=rate)

    rate = best_rate(options.rates, lambda rate, seed: area(run(rate, seed)[0]))
    runs = [run(rate, seed) for seed in range(options.seeds)]
    return ObjectiveRuns(
        rate=rate,
        curves=[values for values, _ in runs],
        clipped=float(np.mean([fraction for _, fraction in runs])),
        rows=[
            {"lag": lag, "objective": name, "seed": seed, "rate": rate, "values": values}
            for seed, (values, _) in enumerate(runs)
        ],
    )


def draw(rows: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Write a picture of the gains for each lag above 0; return the paths of the SVG files."""
    areas = {(row["lag"], row["objective"], row["seed"]): area(row["values"]) for row in rows}
    paths = []
    for lag in sorted({row["lag"] for row in rows} - {0}):
        names = dict.fromkeys(row["objective"] for row in rows if row["lag"] == lag)
        seeds = sorted({row["seed"] for row in rows})
        estimates = [
            over_runs(
                name,
                [areas[lag, name, seed] - areas[lag, "reinforce", seed] for seed in seeds],
            )
            for name in names
        ]
        paths.append(
            write_picture(
                folder / f"bakeoff_stale_{lag}.svg",
                title=f"samples of {lag} steps ago",
                estimates=estimates,
                label="area minus the area of reinforce",
            )
        )
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lags", type=int, nargs="+", default=(0, 2, 8))
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--json", type=Path, help="file for all numbers")
    parser.add_argument("--draw", type=Path, help="folder of the pictures of the numbers in --json")
    options = parser.parse_args()
    if options.draw:
        if not options.json:
            parser.error("--draw needs --json FILE, as an earlier run wrote it")
        print(*draw(json.loads(options.json.read_text()), options.draw), sep="\n")
        return
    torch.set_num_threads(1)
    leaves, every = Leaves(GAME), list[dict[str, Any]]()
    for lag in options.lags:
        print(f"\nlag {lag}\n")
        print(table_head(["objective", "rate", "final", "area", "gain", "clipped"]))
        reference: list[float] = []
        for name in options.objectives:
            found = objective_runs(name, leaves, lag, options)
            every += found.rows
            areas = [area(values) for values in found.curves]
            if name == "reinforce":
                reference = areas
            gains = [a - b for a, b in zip(areas, reference, strict=True)] if reference else []
            final = mean([values[-1] for values in found.curves], digits=3)
            cells = [final, mean(areas, digits=3), mean(gains, digits=3) if gains else ""]
            clipped = f"{found.clipped:.1%}"
            print(table_row([name, f"{found.rate:g}", *cells, clipped]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(every) + "\n")


if __name__ == "__main__":
    main()
