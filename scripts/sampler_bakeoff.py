"""Compares samplers by the completions that they need to reach a score, in enumerated games.

The games, the policies and the learner are those of `tabular_bakeoff.py learn`. The cost of a step
differs between samplers: `dynamic` and `adaptive` play until they have signal, `resample` drops
half of its episodes, and the episodes of `branch` and `tree` share beginnings. The exact expected
return is therefore compared by completions played, up to a budget, and not by steps. The learning
rate of each sampler is the one of three with the best area in three seeds that are not reported.

- reached: completions until the exact return of the team is 90 % of the best one for the first
  time; the budget if it never is;
- within: fraction of the seeds that reach it within the budget;
- area: mean of the exact return over all completions of the budget;
- gain: the area minus that of `independent` with the same seed;
- learned: fraction of the completions played that the gradient uses.

Means have Student's interval over seeds. `--draw` makes a picture of the gains for each game.

Usage: python scripts/sampler_bakeoff.py [--games relay steps] [--samplers dynamic tree]
           [--seeds 24] [--budget 1920] [--rates 0.1 0.3 1] [--json FILE] [--draw FOLDER]
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bakeoff_learning import RATES, Ascent, Curve, area_by_cost, best_rate
from bakeoff_table import mean, table_head, table_row, write_picture
from enumerated_games import GAMES, Game, Player
from enumerated_methods import Method, branches, estimate, tree

from selfplay.credit.at_grpo import ATGRPO
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.errors import NothingToLearn
from selfplay.sampler.adaptive import Adaptive
from selfplay.sampler.dynamic import Dynamic
from selfplay.sampler.resample import Resample
from selfplay.study.stats.bootstrap import over_runs

SCORE = 0.9
"""Fraction of the best return that counts as reached."""


def dr_grpo(game: Game) -> DrGRPO:
    """Return the credit of all samplers but `tree`, which has a credit of its own."""
    return DrGRPO(group_by="agent")


SAMPLERS: Mapping[str, Method] = {
    "independent": Method(make=dr_grpo),
    "dynamic": Method(
        make=dr_grpo, sampler=lambda: Dynamic(group_size=4, rounds=10, group_by="agent")
    ),
    "adaptive": Method(
        make=dr_grpo, sampler=lambda: Adaptive(group_size=4, round_size=4, rounds=4)
    ),
    "resample": Method(make=dr_grpo, sampler=lambda: Resample(group_size=4)),
    "branch": Method(make=dr_grpo, sampler=branches, completions=12),
    "tree": Method(make=lambda game: ATGRPO(), sampler=tree, completions=12),
}
"""Samplers with groups of 4 plays, 4 branches or 4 leaves; all learn from at most 48 completions a
step."""


def learn(
    game: Game, method: Method, seed: int, *, budget: int, rate: float
) -> tuple[Curve, float]:
    """Return the learning curve and the fraction of completions that the gradient uses."""
    player = Player(game, np.random.default_rng([seed, 2]))
    player.logits = game.logits(seed, scale=0.5)
    credit, sampler, groups = method.make(game), method.sampler(), method.groups(game)
    ascent, curve = Ascent(rate), [(0, game.value(player.logits))]
    used = step = 0
    while player.completions < budget:
        step += 1
        try:
            batch = player.sample(sampler, groups=groups, step=step)
        except NothingToLearn:  # without a signal, the step counts and nothing is learned
            continue
        used += sum(len(e.turns) - e.shared_turns for group in batch for e in group.episodes)
        player.logits = player.logits + ascent.step(estimate(credit, player.logits, batch))
        curve.append((player.completions, game.value(player.logits)))
    return curve, used / player.completions


def reached(curve: Curve, wanted: float, budget: int) -> int:
    """Return the completions until the return is `wanted` for the first time, at most `budget`."""
    return min([count for count, value in curve if value >= wanted and count <= budget] or [budget])


@dataclass(frozen=True, kw_only=True)
class SamplerRuns:
    """Runs of one sampler in a game, with the learning rate that the tuning chose."""

    rate: float
    """Learning rate."""
    curves: Sequence[Curve]
    """A learning curve for each seed."""
    learned: float
    """Fraction of the completions that the gradient uses."""
    rows: Sequence[dict[str, Any]]
    """All numbers for `--json`, a row for each seed."""


def sampler_runs(game: Game, name: str, options: argparse.Namespace) -> SamplerRuns:
    """Return the runs of a sampler of `SAMPLERS`."""
    method, budget = SAMPLERS[name], options.budget

    def run(rate: float, seed: int) -> tuple[Curve, float]:
        return learn(game, method, seed, budget=budget, rate=rate)

    rate = best_rate(options.rates, lambda rate, seed: area_by_cost(run(rate, seed)[0], budget))
    runs = [run(rate, seed) for seed in range(options.seeds)]
    return SamplerRuns(
        rate=rate,
        curves=[curve for curve, _ in runs],
        learned=float(np.mean([fraction for _, fraction in runs])),
        rows=[
            {"game": game.name, "sampler": name, "seed": seed, "rate": rate, "curve": curve}
            for seed, (curve, _) in enumerate(runs)
        ],
    )


def draw(game: Game, gains: Mapping[str, Sequence[float]], folder: Path) -> None:
    """Write a picture of the gains of each sampler in a game."""
    write_picture(
        folder / f"bakeoff_samplers_{game.name}.svg",
        title=game.about,
        estimates=[over_runs(name, values) for name, values in gains.items()],
        label="area minus the area of independent",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--games", nargs="+", choices=GAMES, default=("relay", "steps"))
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--budget", type=int, default=1920, help="completions of a run")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--json", type=Path, help="file for all numbers")
    parser.add_argument("--draw", type=Path, help="folder of the pictures")
    options = parser.parse_args()
    budget, every = options.budget, list[dict[str, Any]]()
    for game in (GAMES[name] for name in options.games):
        wanted = SCORE * float(game.returns.mean(1).max())
        print(f"\n{game.name}: {game.about}; reached means {wanted:.2f}\n")
        print(table_head(["sampler", "rate", "reached", "within", "area", "gain", "learned"]))
        gains: dict[str, list[float]] = {}
        reference: list[float] = []
        for name in options.samplers:
            found = sampler_runs(game, name, options)
            every += found.rows
            areas = [area_by_cost(curve, budget) for curve in found.curves]
            if name == "independent":
                reference = areas
            counts = [reached(curve, wanted, budget) for curve in found.curves]
            within = float(np.mean([n < budget for n in counts]))
            if reference:
                gains[name] = [a - b for a, b in zip(areas, reference, strict=True)]
            gain = mean(gains[name]) if reference else ""
            cells = [mean(counts, digits=0), f"{within:.0%}", mean(areas), gain]
            print(
                table_row([f"`{name}`", f"{found.rate:g}", *cells, f"{found.learned:.0%}"]),
                flush=True,
            )
        if options.draw:
            draw(game, gains, options.draw)
    if options.json:
        options.json.write_text(json.dumps(every) + "\n")


if __name__ == "__main__":
    main()
