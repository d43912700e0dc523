"""Compares credit methods with a small language model in a game of `bakeoff_games.GAMES`.

Every run is an ordinary `selfplay train` of one experiment. All methods have the same model,
objective, optimizer, tasks and number of steps. Methods that branch play other numbers of episodes,
so that all methods sample about as many turns. The learning rate of each method is the one of
`--rates` with the best area in the seeds of the tuning, which are not reported.

- final: the game's score after training, by its own evaluation;
- area: mean over the steps of the score in training;
- gain: the area minus that of the first method with the same seed;
- seconds: processor time of a run, from the start of its process to its end.

Means have Student's interval over seeds. A run that has ended is not repeated, and one that was
stopped goes on: the same command continues. The last line compares the same runs by
`selfplay study`.

Usage: python scripts/game_bakeoff.py GAME [--methods rloo gae] [--seeds 5] [--tuning 1]
           [--rates 3e-4 1e-3 3e-3] [--steps 60] [--jobs 1] [--folder runs/bakeoff] [--draw FOLDER]
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from bakeoff_games import GAMES, Game
from bakeoff_table import mean, table_head, table_row, write_picture

from selfplay.run.record_reader import read_metrics
from selfplay.study.stats.bootstrap import over_runs

TUNING = 100
"""First seed of the tuning."""


@dataclass(frozen=True, kw_only=True)
class Bakeoff:
    """The runs of a comparison; each is made when it is needed."""

    game: Game
    """Experiment, methods and metrics."""
    folder: Path
    """Folder of the runs."""
    steps: int
    """Steps of every run."""

    def place(self, method: str, rate: float, seed: int | str) -> Path:
        """Return the folder of a run, or a pattern of folders."""
        return self.folder / f"{re.sub('[^a-z_]+', '-', method)}-lr{rate:g}-seed{seed}"

    def trained(self, method: str, rate: float, seed: int) -> Path:
        """Return the folder of a run that has ended; train it, or the rest of it, if it has not."""
        place = self.place(method, rate, seed)
        if not (place / "summary.json").exists():
            changes = (f"learner.lr={rate}", f"seed={seed}", f"run.steps={self.steps}")
            named = (f"run.folder={place.parent}", f"run.name={place.name}", "run.threads=1")
            new = (*self.game.experiment, *self.game.methods[method], *changes, *named)
            chosen = (f"resume={place}",) if place.exists() else new
            spent = processor_time([sys.executable, "-m", "selfplay", "train", *chosen])
            if chosen is new:
                (place / "seconds.json").write_text(json.dumps(spent) + "\n")
        return place

    def train(self, cases: Iterable[tuple[str, float, int]], jobs: int) -> None:
        """Train the runs of these methods, rates and seeds that are missing, `jobs` at a time."""
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda case: self.trained(*case), cases))

    def tuning(self, method: str, rates: Sequence[float], seeds: int) -> dict[float, float]:
        """Return the mean area in the seeds of the tuning by learning rate; NaN for a single rate,
        which is not tuned."""
        if len(rates) == 1:
            return {rates[0]: float("nan")}
        return {
            rate: float(
                np.mean(
                    [self.area(self.trained(method, rate, TUNING + seed)) for seed in range(seeds)]
                )
            )
            for rate in rates
        }

    def area(self, run: Path) -> float:
        """Return the mean over the steps of the score in training."""
        rows, name = read_metrics(run / "metrics.jsonl"), self.game.curve
        return float(np.mean([row[name] for row in rows.values() if name in row]))

    def final(self, run: Path) -> float:
        """Return the score after training."""
        rows = read_metrics(run / "metrics.jsonl")
        return rows[max(rows)][self.game.final]


def processor_time(command: Sequence[str]) -> float:
    """Run a command without its output; return its processor time in s."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    # Of this process only: others may run at the same time.
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return used.ru_utime + used.ru_stime


def seconds(run: Path) -> float:
    """Return the processor time of a run in s; NaN if the run was stopped in between."""
    place = run / "seconds.json"
    return float(json.loads(place.read_text())) if place.exists() else float("nan")


def shown(values: Sequence[float]) -> str:
    """Return the text of a mean, with Student's interval if there are several values."""
    return mean(values, digits=3) if len(values) > 1 else f"{values[0]:.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("game", choices=list(GAMES))
    parser.add_argument("--methods", nargs="+", help="credit methods; default: all")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each method")
    parser.add_argument("--tuning", type=int, default=1, help="seeds of the tuning")
    parser.add_argument("--rates", type=float, nargs="+", help="default: those of the game")
    parser.add_argument("--steps", type=int, help="steps of a run; default: those of the game")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--folder", type=Path, help="default: runs/bakeoff/GAME")
    parser.add_argument("--draw", type=Path, help="folder of the picture")
    options = parser.parse_args(arguments)
    game = GAMES[options.game]
    methods, rates = options.methods or list(game.methods), options.rates or game.rates
    if unknown := set(methods) - set(game.methods):
        parser.error(f"{options.game} has no methods {sorted(unknown)}; {list(game.methods)}")
    bakeoff = Bakeoff(
        game=game,
        folder=options.folder or Path("runs/bakeoff", options.game),
        steps=options.steps or game.steps,
    )
    if len(rates) > 1:
        seeds = range(TUNING, TUNING + options.tuning)
        bakeoff.train(product(methods, rates, seeds), options.jobs)
    tuning = {name: bakeoff.tuning(name, rates, options.tuning) for name in methods}
    chosen = {name: max(found, key=lambda rate: found[rate]) for name, found in tuning.items()}
    reported = range(options.seeds)
    bakeoff.train(
        ((name, chosen[name], seed) for name in methods for seed in reported), options.jobs
    )
    print(table_head(("credit", "rate", "final", "area", "gain", "seconds")))
    areas: dict[str, list[float]] = {}
    gains: dict[str, list[float]] = {}
    sets = []
    first = next(iter(game.methods))
    for name, rate in chosen.items():
        runs = [bakeoff.trained(name, rate, seed) for seed in range(options.seeds)]
        areas[name] = [bakeoff.area(run) for run in runs]
        gain = ""
        if first in areas:
            pairs = zip(areas[name], areas[first], strict=True)
            gains[name] = [own - other for own, other in pairs]
            gain = shown(gains[name])
        cost = f"{np.nanmean([seconds(run) for run in runs]):.0f}"
        finals = shown([bakeoff.final(run) for run in runs])
        cells = (f"`{name}`", f"{rate:g}", finals, shown(areas[name]), gain, cost)
        print(table_row(cells), flush=True)
        sets.append(f"{name}={bakeoff.place(name, rate, '?')}")
    refused = ", ".join(f"`{name}` ({why})" for name, why in game.refused.items())
    print(f"\nnot defined: {refused}")
    for name, others in game.same.items():
        print(f"`{name}` up to a constant: {', '.join(f'`{other}`' for other in others)}")
    if len(rates) > 1:
        print("\narea in the tuning, by learning rate")
        for name, found in tuning.items():
            print(f"`{name}`", *(f"{rate:g}: {each:.3f}" for rate, each in found.items()), sep=", ")
    print()
    only = game.curve.rpartition("/")[2]
    print("selfplay study compare metrics", *map(shlex.quote, sets), f"--only {only}")
    if options.draw and gains:
        write_picture(
            options.draw / f"bakeoff_{options.game}.svg",
            title=options.game.replace("_", " "),
            estimates=[over_runs(name, values) for name, values in gains.items()],
            label=f"area minus the area of {first}",
        )


if __name__ == "__main__":
    main()
