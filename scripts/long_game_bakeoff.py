"""Compares credit methods with a small language model in a long game that pays at the end.

The game is `tiny/long_road`: 128 turns, four rounds that matter, one reward. Every run is an
ordinary `selfplay train`, with the same model, objective, optimizer, games and number of steps.
Methods that branch play more walks, because a branch replays half of a walk in the mean: all
methods sample about 4,096 turns a step. The learning rate of each method is the one of three with
the best area in the seeds of the tuning, which are not reported.

- final: fraction of the forks that are passed after training, in 100 sampled walks;
- area: mean over the steps of the fraction of the forks that are passed in training;
- gain: the area less that of `rloo` with the same seed;
- seconds: processor time of a run, from the start of its process to its end.

Random play passes 1/4 of the forks, and the best play all of them. Means have Student's interval
over seeds. A run that has ended is not repeated, and one that was stopped goes on: the same command
continues. The last line compares the same runs by `selfplay study`.

Usage: python scripts/long_game_bakeoff.py [--methods rloo gae] [--seeds 5] [--tuning 1]
           [--rates 3e-4 1e-3 3e-3] [--steps 60] [--folder runs/long_game] [--draw FOLDER]
"""

import argparse
import json
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bakeoff_table import mean, table_head, table_row, write_picture

from selfplay.run.record_reader import read_metrics
from selfplay.study.stats.bootstrap import over_runs

AGENT = "credit.group_by=agent"
BRANCH = ("sampler=branch", "sampler.group_size=42", "sampler.initial=22")
METHODS: Mapping[str, tuple[str, ...]] = {
    "rloo": ("credit=rloo", AGENT),
    "grpo": ("credit=grpo", AGENT),
    "rae": ("credit=rae",),
    "gae": ("credit=gae",),
    "gigpo": ("credit=gigpo", AGENT),
    "gigpo, no discount": ("credit=gigpo", AGENT, "credit.discount=1"),
    "dr_grpo, branch": ("credit=dr_grpo", AGENT, *BRANCH),
    "arpo, branch": ("credit=arpo", AGENT, *BRANCH),
    "agent_turn, branch": ("credit=agent_turn", *BRANCH),
    "counterfactual": ("credit=counterfactual", "credit.default=left"),
}
"""Overrides of `tiny/long_road`: the settings of `configs/credit/`, but agents are compared with
themselves, and `counterfactual` replaces a move by left."""
SAME: Mapping[str, tuple[str, ...]] = {
    "rloo": ("dr_grpo", "magrpo"),
    "grpo": ("turn", "team", "trr", "reinforce_pp"),
}
"""Methods whose advantages in this game are those of another one times a constant, which Adam
removes: both agents get the same pay at the end, and a step has one group."""
REFUSED = {"pass_at_k": "graded"}
"""Methods that are not defined in this game, and the reason."""
TUNING = 100
"""First seed of the tuning."""


@dataclass(frozen=True, kw_only=True)
class Bakeoff:
    """The runs of a comparison, which are made when they are asked for."""

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
            new = ("+experiment=tiny/long_road", *METHODS[method], *changes, *named)
            chosen = (f"resume={place}",) if place.exists() else new
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "selfplay", "train", *chosen]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            if chosen is new:
                (place / "seconds.json").write_text(json.dumps(spent) + "\n")
        return place

    def tuned(self, method: str, rates: Sequence[float], seeds: int) -> float:
        """Return the learning rate with the largest mean area in the seeds of the tuning."""
        if len(rates) == 1:
            return rates[0]
        areas = {
            rate: np.mean(
                [area(self.trained(method, rate, TUNING + seed)) for seed in range(seeds)]
            )
            for rate in rates
        }
        return max(areas, key=lambda rate: areas[rate])


def area(run: Path) -> float:
    """Return the mean over the steps of the fraction of the forks that were passed in training."""
    rows = read_metrics(run / "metrics.jsonl")
    return float(np.mean([row["arena/passed"] for row in rows.values() if "arena/passed" in row]))


def final(run: Path) -> float:
    """Return the fraction of the forks that are passed after training."""
    rows = read_metrics(run / "metrics.jsonl")
    return rows[max(rows)]["evaluation/road/passed"]


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
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5, help="runs of each method")
    parser.add_argument("--tuning", type=int, default=1, help="seeds of the tuning")
    parser.add_argument("--rates", type=float, nargs="+", default=(3e-4, 1e-3, 3e-3))
    parser.add_argument("--steps", type=int, default=60, help="steps of a run")
    parser.add_argument("--folder", type=Path, default=Path("runs/long_game"))
    parser.add_argument("--draw", type=Path, help="folder of the picture")
    options = parser.parse_args(arguments)
    bakeoff = Bakeoff(folder=options.folder, steps=options.steps)
    print(table_head(("credit", "rate", "final", "area", "gain", "seconds")))
    areas: dict[str, list[float]] = {}
    gains: dict[str, list[float]] = {}
    sets = []
    for name in options.methods:
        rate = bakeoff.tuned(name, options.rates, options.tuning)
        runs = [bakeoff.trained(name, rate, seed) for seed in range(options.seeds)]
        areas[name] = [area(run) for run in runs]
        gain = ""
        if "rloo" in areas:
            pairs = zip(areas[name], areas["rloo"], strict=True)
            gains[name] = [own - other for own, other in pairs]
            gain = shown(gains[name])
        cost = f"{np.nanmean([seconds(run) for run in runs]):.0f}"
        finals = shown([final(run) for run in runs])
        cells = (f"`{name}`", f"{rate:g}", finals, shown(areas[name]), gain, cost)
        print(table_row(cells), flush=True)
        sets.append(f"{name}={bakeoff.place(name, rate, '?')}")
    refused = ", ".join(f"`{name}` ({why})" for name, why in REFUSED.items())
    print(f"\nnot defined: {refused}")
    for name, others in SAME.items():
        print(f"`{name}` up to a constant: {', '.join(f'`{other}`' for other in others)}")
    print()
    print("selfplay study compare metrics", *map(shlex.quote, sets), "--only passed")
    if options.draw and gains:
        write_picture(
            options.draw / "bakeoff_long_game.svg",
            title="long road",
            estimates=[over_runs(name, values) for name, values in gains.items()],
            label="area, less that of rloo",
        )


if __name__ == "__main__":
    main()
