"""Prints the evaluations of sets of runs: means over seeds, and differences from the first set.

The intervals are Student's over runs. A difference from the first set is one of runs with equal
seeds, after training. The numbers are those that each run wrote to its summary; nothing is played
again.

Usage: python scripts/compare_evaluations.py 'method=runs/m-*' 'control=runs/c-*' [--only held_out]
"""

import argparse
import json
from collections.abc import Sequence
from glob import glob
from pathlib import Path

from selfplay.study.stats.bootstrap import over_runs

Summary = dict[str, dict[str, dict[str, float]]]
"""Evaluation to "before" or "after" to metric to value."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sets", nargs="+", metavar="NAME=RUNS", help="RUNS may have wildcards")
    parser.add_argument("--only", default="", help="words that the printed names contain")
    options = parser.parse_args()
    if wrong := [each for each in options.sets if "=" not in each]:
        raise SystemExit(f"{wrong[0]}: a set is NAME=RUNS, such as 'method=runs/m-*'")
    sets = {name: read(found) for name, found in (each.split("=", 1) for each in options.sets)}
    first = next(iter(sets))
    for metric in metrics(next(iter(sets[first].values()))):
        if not all(word in "/".join(metric) for word in options.only.split()):
            continue
        print("/".join(metric))
        for name, runs in sets.items():
            before, after = (values(runs, metric, when) for when in ("before", "after"))
            gains = [new - old for new, old in zip(after, before, strict=True)]
            print(f"  {name}: {shown(before)} -> {shown(after)}, gain {shown(gains)}")
            if name != first:
                if set(runs) != set(sets[first]):
                    raise SystemExit(f"{name}: its seeds are not those of {first}")
                others = values(sets[first], metric, "after")
                less = [own - other for own, other in zip(after, others, strict=True)]
                print(f"    {name} less {first}, after training: {shown(less)}")


def read(runs: str) -> dict[int, Summary]:
    """Return the evaluations of the runs by seed; raises SystemExit without exactly one a seed."""
    found: dict[int, Summary] = {}
    for place in sorted(glob(runs)):
        try:
            summary = json.loads((Path(place) / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SystemExit(f"{place}: no summary.json; the run has not finished") from None
        if summary["seed"] in found:
            raise SystemExit(f"{runs}: two runs have seed {summary['seed']}")
        found[summary["seed"]] = summary["evaluations"]
    if not found:
        raise SystemExit(f"{runs}: no run there")
    return dict(sorted(found.items()))


def metrics(summary: Summary) -> list[tuple[str, str]]:
    """Return (evaluation, metric) of all tasks together."""
    return [
        (evaluation, metric)
        for evaluation, found in summary.items()
        for metric in found["after"]
        if "/" not in metric and metric != "failed_episodes"
    ]


def values(runs: dict[int, Summary], metric: tuple[str, str], when: str) -> list[float]:
    """Return the values of the runs, in the order of their seeds."""
    evaluation, name = metric
    return [found[evaluation][when][name] for found in runs.values()]


def shown(numbers: Sequence[float]) -> str:
    """Return the mean, its interval and the values; a single value has no interval."""
    if len(numbers) == 1:
        return f"{numbers[0]:.3f}"
    found = over_runs("", numbers)
    each = ", ".join(f"{number:.3f}" for number in numbers)
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f}; {each})"


if __name__ == "__main__":
    main()
