"""Compares credit methods in games that are small enough to enumerate, at equal completions.

`noise`: for each of several random policies, many batches of the same number of completions are
drawn; each method turns each batch into a gradient, which is compared with the exact one. A
learning rate absorbs any scale, so estimates are first divided by the scale s = (m . e) / (e . e)
that fits their mean m best to the exact gradient e:

- bias: |m / s - e|^2 / |e|^2, with the part that the finite number of batches explains taken off,
  so that it may be a little below 0;
- noise: the trace of the covariance of one batch's estimate, / s^2 |e|^2. Bias + noise is the
  relative squared error;
- ratio: the noise, divided by that of `rloo` (for methods of the team's return: `magrpo`) at the
  same policy; the geometric mean over policies;
- seconds: CPU time of the credit method for 1,000 completions.

`learn`: the policies climb the estimates by Adam. The learning rate is the one of three with the
best mean return over all steps in three seeds that are not reported.

- final: the exact expected return of the team at the end;
- area: its mean over all steps, the area under the learning curve;
- gain: the area minus that of `rloo` with the same seed.

Means have Student's interval, over policies or seeds. `draw` makes a picture for each game, of the
ratios or of the gains, from the numbers that `--json` kept.

Usage: python scripts/tabular_bakeoff.py noise [--games relay] [--methods grpo rloo] [--seeds 12]
           [--batches 60] [--json FILE]
       python scripts/tabular_bakeoff.py learn [--steps 40] [--rates 0.3] ...
       python scripts/tabular_bakeoff.py draw --json FILE [--folder FOLDER]
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from bakeoff_learning import RATES, Ascent, area, best_rate
from bakeoff_table import interval, table_head, table_row, write_picture
from enumerated_games import GAMES, Game, Player
from enumerated_methods import METHODS, Method, estimate

from selfplay.study.stats.bootstrap import Estimate, over_runs

WARM = 10
"""Batches that a method sees before its noise is measured, so that averages and critics settle."""
COOPERATIVE = ("hunt", "relay", "steps")
"""Games of `learn`, in which a higher return of the team is better for both agents."""
DENSE = ("hunt", "steps", "dilemma", "pennies")
"""Games of `noise`, in which most batches of a random policy have something to compare."""

Row = dict[str, Any]


def judged(found: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Return bias and noise of [batch, parameter] estimates of the gradient `exact`."""
    count, mean, size = len(found), found.mean(0), float(exact @ exact)
    scale = float(mean @ exact) / size
    if not scale:
        raise SystemExit("the mean estimate has no part along the gradient: take more --batches")
    around = found - mean
    spread = float((around**2).sum()) / (count - 1)
    # The mean of the batches has the error spread / count; the fit removes its part along `exact`.
    along = float(((around @ exact) ** 2).sum()) / (count - 1) / size
    left = float(((mean - scale * exact) ** 2).sum()) - (spread - along) / count
    return {"bias": left / (scale**2 * size), "noise": spread / (scale**2 * size)}


def noise(game: Game, method: Method, seed: int, *, batches: int) -> Row:
    """Return the values of `judged` for a method at the policy of a seed, and its CPU seconds."""
    player = Player(game, np.random.default_rng([seed, 1]))
    player.logits = game.logits(seed)
    credit, sampler, groups = method.make(game), method.sampler(), method.groups(game)
    found, seconds, done = [], 0.0, 0
    for step in range(WARM + batches):
        batch = player.sample(sampler, groups=groups, step=step)
        if step == WARM:
            done = player.completions
        begun = time.process_time()
        found.append(estimate(credit, player.logits, batch).ravel())
        seconds += (time.process_time() - begun) * (step > WARM)
    exact = game.exact(player.logits, team=method.team).ravel()
    per_thousand = 1000 * seconds / max(player.completions - done, 1)
    return {**judged(np.array(found[WARM:]), exact), "seconds": per_thousand}


def learn(game: Game, method: Method, seed: int, *, steps: int, rate: float) -> list[float]:
    """Return the exact expected return of the team before each step, and after the last one."""
    player = Player(game, np.random.default_rng([seed, 2]))
    player.logits = game.logits(seed, scale=0.5)
    credit, sampler, groups = method.make(game), method.sampler(), method.groups(game)
    ascent = Ascent(rate)
    values = [game.value(player.logits)]
    for step in range(1, steps + 1):
        batch = player.sample(sampler, groups=groups, step=step)
        gradient = estimate(credit, player.logits, batch)
        player.logits = player.logits + ascent.step(gradient)
        values.append(game.value(player.logits))
    return values


def tuned(game: Game, method: Method, *, steps: int, rates: Sequence[float]) -> float:
    """Return the best learning rate of a method in a game, see `best_rate`."""
    return best_rate(
        rates, lambda rate, seed: area(learn(game, method, seed, steps=steps, rate=rate))
    )


def mean(values: Sequence[float], *, logs: bool = False, name: str = "mean") -> Estimate:
    """Return a mean with Student's interval; `logs` are turned into a ratio."""
    found = over_runs(name, values)
    if not logs:
        return found
    ends = (found.value, found.low, found.high)
    value, low, high = (math.exp(each) for each in ends)
    return replace(found, value=value, low=low, high=high)


def shown(values: Sequence[float], *, logs: bool = False) -> str:
    """Return the text of a mean with its interval."""
    return interval(mean(values, logs=logs))


def relative(rows: Sequence[Row], game: str, method: str, *, noisy: bool) -> list[float]:
    """Return, by seed, logarithms of ratios of the noise, or differences of areas, of a method to
    the one that it is compared with."""
    reference = "magrpo" if noisy and METHODS[method].team else "rloo"

    def of(name: str) -> list[Row]:
        return [each for each in rows if each["game"] == game and each["credit"] == name]

    pairs = zip(of(method), of(reference), strict=False)
    if noisy:
        return [math.log(one["noise"] / two["noise"]) for one, two in pairs]
    return [area(one["values"]) - area(two["values"]) for one, two in pairs]


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write a picture for each game; return the paths of the SVG files."""
    noisy = "noise" in rows[0]
    what = "noise" if noisy else "learning"
    label = "noise, relative to rloo or magrpo" if noisy else "area minus the area of rloo"
    paths = []
    for game in dict.fromkeys(each["game"] for each in rows):
        names = dict.fromkeys(each["credit"] for each in rows if each["game"] == game)
        estimates = [
            mean(relative(rows, game, name, noisy=noisy), logs=noisy, name=name) for name in names
        ]
        paths.append(
            write_picture(
                folder / f"bakeoff_{what}_{game}.svg",
                title=game,
                estimates=estimates,
                label=label,
                null=1.0 if noisy else 0.0,
            )
        )
    return paths


def noise_table(game: Game, names: Sequence[str], options: argparse.Namespace) -> list[Row]:
    """Print and return the noise of each method in a game."""
    print(table_head(["credit", "return", "bias", "noise", "ratio", "seconds"]))
    every: list[Row] = []
    for name in names:
        method = METHODS[name]
        rows = [noise(game, method, seed, batches=options.batches) for seed in range(options.seeds)]
        every += [{"game": game.name, "credit": name, "seed": n, **r} for n, r in enumerate(rows)]
        logs = relative(every, game.name, name, noisy=True)
        cells = [shown([found[each] for found in rows]) for each in ("bias", "noise")]
        ratio = shown(logs, logs=True) if logs else ""
        cost = f"{np.mean([found['seconds'] for found in rows]):.3f}"
        print(
            table_row([f"`{name}`", "team" if method.team else "own", *cells, ratio, cost]),
            flush=True,
        )
    return every


def learn_table(game: Game, names: Sequence[str], options: argparse.Namespace) -> list[Row]:
    """Print and return the learning of each method in a game."""
    print(table_head(["credit", "rate", "final", "area", "gain"]))
    every: list[Row] = []
    for name in names:
        method = METHODS[name]
        rate = tuned(game, method, steps=options.steps, rates=options.rates)
        curves = [
            learn(game, method, seed, steps=options.steps, rate=rate)
            for seed in range(options.seeds)
        ]
        every += [
            {"game": game.name, "credit": name, "seed": n, "rate": rate, "values": curve}
            for n, curve in enumerate(curves)
        ]
        gains = relative(every, game.name, name, noisy=False)
        areas = [area(curve) for curve in curves]
        gain = shown(gains) if gains else ""
        cells = [shown([curve[-1] for curve in curves]), shown(areas), gain]
        print(table_row([f"`{name}`", f"{rate:g}", *cells]), flush=True)
    return every


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each game, and write all numbers if a file is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("noise", "learn", "draw"))
    parser.add_argument("--games", nargs="*", choices=list(GAMES), help="default: those that fit")
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=12, help="policies, or runs")
    parser.add_argument("--batches", type=int, default=60, help="batches per policy (noise)")
    parser.add_argument("--steps", type=int, default=40, help="steps of a run (learn)")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="rates (learn)")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    parser.add_argument("--folder", type=Path, default=Path(), help="folder of the pictures (draw)")
    options = parser.parse_args(arguments)
    if options.what == "draw":
        if not options.json:
            parser.error("draw needs --json FILE, as noise or learn wrote it")
        print(*draw(json.loads(options.json.read_text()), options.folder), sep="\n")
        return
    fitting = COOPERATIVE if options.what == "learn" else DENSE
    table = learn_table if options.what == "learn" else noise_table
    found: list[Row] = []
    for game in (GAMES[name] for name in options.games or fitting):
        print(f"\n{game.name}: {game.about}\n")
        refused = {n: METHODS[n].refuses[game.name] for n in options.methods
                   if game.name in METHODS[n].refuses}  # fmt: skip
        found += table(game, [n for n in options.methods if n not in refused], options)
        if refused:
            print("\nnot defined: " + ", ".join(f"`{n}` ({why})" for n, why in refused.items()))
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
