"""Compares places to branch (`sampler=branch`, `where`) in games in which the result of a tool
begins a new stage.

The games are those of `tool_game.py`. A step plays one task and makes one step of Adam on the mean
over samples of the advantage times the score. A group has 12 whole plays, or 8 whole plays and 8
branches of them: half of the group, as in `algorithm=arpo`. How many completions a branch costs
depends on its place, so runs have the same number of completions, and not of steps. The learning
rate of each method is the one of three with the best area in three seeds that are not reported.

- uniform: a branch begins before any stage but the first, by chance;
- surprisal: before the stages in which the sampled choice had the lowest probability, if it was
  lower than that of the first stage (`where=surprisal`; a completion has one token here);
- entropy: the same by the exact entropy of the policy at a stage, in place of the estimate from one
  sample. The library has no such option.

- final: the exact expected return at the end;
- area: its mean over the completions of the budget, the area under the learning curve;
- gain: the area minus that of `rloo` with the same seed;
- minus uniform: the area minus that of the same credit with `where=uniform` and the same seed;
- step: completions of a step;
- branches: fraction of the places for branches that were used; the others are whole plays;
- after a result: fraction of the branches that begin right after the result of a tool.

Means have Student's interval over seeds. `table` prints the tables again, and `draw` makes a
picture for each game, of the numbers that `--json` kept.

Usage: python scripts/branch_bakeoff.py learn [--games answers calls comments] [--methods ...]
           [--seeds 24] [--budget 2880] [--rates 0.1 0.3 1] [--json FILE]
       python scripts/branch_bakeoff.py table --json FILE
       python scripts/branch_bakeoff.py draw --json FILE [--folder FOLDER]
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bakeoff_learning import (
    Ascent,
    add_run_options,
    area_by_cost,
    best_rate,
    kept_rows,
    last_within,
)
from bakeoff_table import mean, table_head, table_row, write_picture
from enumerated_games import scores
from tool_game import GAMES, TASKS, Solver, ToolGame

from selfplay.credit.arpo import ARPO
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.credit.grpo import GRPO
from selfplay.credit.rloo import RLOO
from selfplay.curriculum.fixed import FixedTasks
from selfplay.sampler.independent import Independent
from selfplay.sampler.tree import Branch
from selfplay.study.stats.bootstrap import over_runs
from selfplay.types import Group, Sample

PLAYS = 12
"""Plays of a group without branches."""
INITIAL = 8
"""Whole plays of a group with branches, and the largest number of branches."""
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A credit method and its sampler."""

    credit: Callable[[], Any]
    sampler: Callable[[], Independent | Branch]
    uniform: str = ""
    """Name of the method with the same credit and `where=uniform`; empty for other methods."""
    entropies: bool = False
    """True to rank stages by the exact entropy of the policy."""


def independent() -> Independent:
    """Return a sampler of whole plays."""
    return Independent(group_size=PLAYS)


def uniform() -> Branch:
    """Return a sampler of branches from any stage."""
    return Branch(group_size=2 * INITIAL, initial=INITIAL, where="uniform")


def surprisal() -> Branch:
    """Return a sampler of branches from the stages with the largest surprisal."""
    return Branch(group_size=2 * INITIAL, initial=INITIAL, where="surprisal")


METHODS: Mapping[str, Method] = {
    "rloo": Method(credit=RLOO, sampler=independent),
    "grpo": Method(credit=GRPO, sampler=independent),
    "dr_grpo, uniform": Method(credit=DrGRPO, sampler=uniform),
    "dr_grpo, surprisal": Method(credit=DrGRPO, sampler=surprisal, uniform="dr_grpo, uniform"),
    "dr_grpo, entropy": Method(
        credit=DrGRPO, sampler=surprisal, uniform="dr_grpo, uniform", entropies=True
    ),
    "arpo, uniform": Method(credit=ARPO, sampler=uniform),
    "arpo, surprisal": Method(credit=ARPO, sampler=surprisal, uniform="arpo, uniform"),
    "arpo, entropy": Method(
        credit=ARPO, sampler=surprisal, uniform="arpo, uniform", entropies=True
    ),
}
"""Methods, `rloo` first; the others are compared with it."""


def estimate(samples: Sequence[Sample], logits: np.ndarray) -> np.ndarray:
    """Return the mean over samples of the advantage times the score."""
    weights = np.zeros_like(logits)
    for each in samples:
        weights[each.turn.prompt_ids[0], each.turn.completion_ids[0]] += np.asarray(
            each.advantage
        ).item()
    return scores(weights, logits) / max(len(samples), 1)


def forks(groups: Sequence[Group], game: ToolGame) -> tuple[int, int]:
    """Return the number of branches, and of those that begin right after the result of a tool."""
    starts = [e.shared_turns for g in groups for e in g.episodes if e.branch_of is not None]
    return len(starts), sum(game.kind(start - 1) == "call" for start in starts)


def learn(game: ToolGame, method: Method, seed: int, *, budget: int, rate: float) -> Row:
    """Return the learning curve of a run and its steps, branches, and branches after a result."""
    rng = np.random.default_rng([seed, 2])
    solver = Solver(game, game.logits(seed), rng, entropies=method.entropies)
    curriculum = FixedTasks(tasks=TASKS, batch=1, seed=seed)
    credit, sampler, ascent = method.credit(), method.sampler(), Ascent(rate)
    curve, counts, step = [(0, game.value(solver.logits))], np.zeros(2, dtype=int), 0
    while solver.completions < budget:
        step += 1
        groups = sampler.sample(curriculum, solver, step=step, seed=seed)
        counts += forks(groups, game)
        change = ascent.step(estimate(credit.assign(groups), solver.logits))
        solver.logits = solver.logits + change
        curve.append((solver.completions, game.value(solver.logits)))
    return {"curve": curve, "steps": step, "branches": int(counts[0]), "after": int(counts[1])}


def rows_of(game: ToolGame, name: str, options: argparse.Namespace) -> list[Row]:
    """Return the runs of a method, a row for each seed, with the rate that the tuning chose."""
    budget = options.budget

    def run(rate: float, seed: int) -> Row:
        return learn(game, METHODS[name], seed, budget=budget, rate=rate)

    rate = best_rate(
        options.rates, lambda rate, seed: area_by_cost(run(rate, seed)["curve"], budget)
    )
    fixed = {"game": game.name, "method": name, "rate": rate, "budget": budget}
    return [{**fixed, "seed": seed, **run(rate, seed)} for seed in range(options.seeds)]


def gains(rows: Sequence[Row], name: str, other: str) -> list[float]:
    """Return the differences of the areas of two methods of a game, by seed; empty without the
    other one."""

    def areas(method: str) -> dict[int, float]:
        found = [row for row in rows if row["method"] == method]
        return {row["seed"]: area_by_cost(row["curve"], row["budget"]) for row in found}

    own, base = areas(name), areas(other)
    return [own[seed] - base[seed] for seed in own if seed in base]


def print_head(game: ToolGame) -> None:
    """Print the head of the table of a game."""
    print(f"\n{game.name}: {game.about}\n")
    head = ["credit", "rate", "final", "area", "gain", "minus uniform"]
    print(table_head([*head, "step", "branches", "after a result"]))


def print_row(name: str, rows: Sequence[Row]) -> None:
    """Print the line of a method; `rows` are those of the game."""
    own = [row for row in rows if row["method"] == name]
    steps = sum(row["steps"] for row in own)
    branches = sum(row["branches"] for row in own)
    spent = sum(row["curve"][-1][0] for row in own)
    pairs = [gains(rows, name, other) for other in ("rloo", METHODS[name].uniform)]
    cells = [
        mean([last_within(row["curve"], row["budget"]) for row in own], digits=3),
        mean([area_by_cost(row["curve"], row["budget"]) for row in own], digits=3),
        *(mean(found, digits=3) if found else "" for found in pairs),
        f"{spent / steps:.0f}",
        f"{branches / (steps * INITIAL):.0%}" if branches else "",
        f"{sum(row['after'] for row in own) / branches:.0%}" if branches else "",
    ]
    print(table_row([f"`{name}`", f"{own[0]['rate']:g}", *cells]), flush=True)


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write a picture of the gains for each game; return the paths of the SVG files."""
    paths = []
    for game in dict.fromkeys(row["game"] for row in rows):
        here = [row for row in rows if row["game"] == game]
        names = dict.fromkeys(row["method"] for row in here)
        if "rloo" not in names:
            raise SystemExit(
                f"{game}: the file has no runs of rloo, with which the others are compared; run "
                "learn with it"
            )
        paths.append(
            write_picture(
                folder / f"bakeoff_branch_{game}.svg",
                title=game,
                estimates=[over_runs(name, gains(here, name, "rloo")) for name in names],
                label="area minus the area of rloo",
            )
        )
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each game, and write all numbers if a file is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("learn", "table", "draw"))
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    add_run_options(parser, seeds=24, unit="completions")
    options = parser.parse_args(arguments)
    if options.what != "learn":
        kept = kept_rows(parser, options)
        if options.what == "draw":
            print(*draw(kept, options.folder), sep="\n")
            return
        for game in dict.fromkeys(row["game"] for row in kept):
            here = [row for row in kept if row["game"] == game]
            print_head(GAMES[game])
            for name in dict.fromkeys(row["method"] for row in here):
                print_row(name, here)
        return
    every: list[Row] = []
    for game in (GAMES[name] for name in options.games):
        print_head(game)
        rows: list[Row] = []
        for name in (each for each in METHODS if each in options.methods):
            rows += rows_of(game, name, options)
            print_row(name, rows)
        every += rows
    if options.json:
        options.json.write_text(json.dumps(every) + "\n")


if __name__ == "__main__":
    main()
