"""Comparison of sets of training runs: any measure of one run, over the runs of each set.

**Definition.** The mean of each metric over the runs of a set. For every set except the first, also
the mean difference to the first set, over the seeds that both sets have. Curves are means over
runs, at the steps at which every run of the set has a value; their bands go from the lowest to the
highest run. Between two recorded steps of a run its curve is interpolated.

**Source.** Statistics of few runs: 2108.10264. Runs of one seed are paired because they share
everything that the seed decides, such as the warm start.

**Estimator.** Student's interval over runs. The interval of a run's own study is not used.

**Limits.** With three runs the interval is wide, as it should be: its ends are 2.5 standard
deviations from the mean. Among many metrics, some differ by chance: one interval in twenty is
expected to miss its true value, and the values of runs need not be normally distributed. A metric
that a run lacks is left out for its seed. Differences leave out the runs of a set that share a
seed. Runs that differ in length are compared at different steps. A note reports both cases.
"""

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from selfplay.errors import ConfigError
from selfplay.study.mean_curves import mean_curves
from selfplay.study.measure import (
    ALL,
    BUDGET,
    COOPERATE,
    DEFAULT,
    DERIVED,
    EQUAL,
    ONLY,
    PAY,
    PLAYING,
    RANGES,
    ROLE,
    SAMPLES,
    Measure,
    step_of,
)
from selfplay.study.players import Reference, seed_of
from selfplay.study.plots import CurvePlot, DotPlot, undrawn
from selfplay.study.registry import measures
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Direction, Estimate, over_runs


def parse_sets(texts: Sequence[str]) -> dict[str, list[Reference]]:
    """Return the players of each set that `NAME=RUN` names; RUN may have wildcards.

    A name may occur several times. Raises ConfigError for a text that is not a set, that matches no
    run, or that names a run twice.
    """
    found: dict[str, list[Reference]] = {}
    for text in texts:
        name, equals, runs = text.partition("=")
        if not (equals and name and runs):
            raise ConfigError(
                f"{text}: no set of runs; write NAME=RUN, such as shared='runs/shared-*' or "
                "before='runs/shared-*@start'"
            )
        known = found.setdefault(name, [])
        for reference in _references(runs):
            if any(_same(reference, other) for other in known):
                raise ConfigError(f"{text}: {reference.run} is named twice in {name}")
            known.append(reference)
    return found


def _same(one: Reference, other: Reference) -> bool:
    """Return True if two references name the same checkpoint, by whatever path."""
    return replace(one, run=one.run.resolve()) == replace(other, run=other.run.resolve())


def _references(text: str) -> list[Reference]:
    if not has_magic(text):
        return [Reference.parse(text)]
    pattern, at, step = text.rpartition("@")
    folders = sorted(place for place in glob(pattern if at else text) if Path(place).is_dir())
    if not folders:
        raise ConfigError(f"{text}: no such run folder")
    return [Reference.parse(f"{folder}{at}{step if at else ''}") for folder in folders]


STEP_NOTE = r"steps? (?:\d+ to )?(\d+)(?:; |$)"
"""Beginning of the notes of an estimate that has a step."""
NAMED = 3
"""Largest number of metrics that a note names."""

Values = Mapping[str, float]
"""Metric to its value."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """Result of one run. `measure_all` makes it; `study` compares such results."""

    reference: Reference
    """Player of the run."""
    seed: int
    """Seed of its training."""
    result: Result
    """Result of the measure."""

    def values(self) -> dict[str, float]:
        """Return the estimates by names without the run's own name."""
        return {self._common(each.name): each.value for each in self.result.estimates}

    def directions(self) -> dict[str, Direction]:
        """Return the direction of each bias; an exact value of a run is unbiased over runs."""
        return {
            self._common(each.name): "unbiased" if each.direction == "exact" else each.direction
            for each in self.result.estimates
        }

    def steps(self) -> dict[str, int]:
        """Return the step of each estimate that has one, by its name; {} if the reference names it.

        The notes of an estimate give the step, such as "step 40" or "steps 1 to 40". Otherwise it
        is that of the player whose label, such as hall-0@40, is in the title or in a name.
        """
        if self.reference.start or self.reference.step is not None:
            return {}
        label = rf"{re.escape(self.reference.run.resolve().name)}@(\d+)"
        named = " ".join([self.result.title, *(each.name for each in self.result.estimates)])
        player = re.search(label, named)
        found = {
            self._common(each.name): re.match(STEP_NOTE, each.notes) or player
            for each in self.result.estimates
        }
        return {name: int(match[1]) for name, match in found.items() if match}

    def _common(self, name: str) -> str:
        run = re.escape(self.reference.run.resolve().name)
        own = "start" if self.reference.start else r"\d+"
        trained = re.sub(rf"{run}@{own} over ", "trained over ", name)
        return re.sub(f"{run}@", "@", re.sub(rf"{run}@{own}(: )?", "", trained))


def measure_all(
    sets: Mapping[str, Sequence[Reference]], study: Callable[[Reference], Result]
) -> dict[str, list[MeasuredRun]]:
    """Apply a measure to every run of every set."""
    seeds = {
        reference.run: seed_of(reference.run)
        for references in sets.values()
        for reference in references
    }
    return {
        name: [
            MeasuredRun(reference=each, seed=seeds[each.run], result=study(each))
            for each in references
        ]
        for name, references in sets.items()
    }


def study(
    measure: str, sets: Mapping[str, Sequence[MeasuredRun]], *, only: Sequence[str] = ()
) -> Result:
    """Compare the results of sets of runs; metrics that a set lacks are left out and named.

    Args:
        measure: Name of the measure.
        sets: Set to its results.
        only: Words in the names of metrics and pictures, see `choose`.
    Raises:
        ConfigError: If the sets have no metric or curve in common, or none with these words.
    """
    first = next(iter(sets.values()))[0].result
    values = {name: [each.values() for each in found] for name, found in sets.items()}
    everywhere, left_out = _metrics(values)
    curves = _curves(sets)
    if not (everywhere or curves):
        found = f"; only some sets have {_listed(left_out)}" if left_out else ""
        raise ConfigError(
            f"compare: the sets {', '.join(sets)} have no metric of {measure} in common{found}; "
            "compare runs with the same kind of task"
        )
    chosen = choose([*everywhere, *(each.title for each in curves)], only)
    metrics = [name for name in everywhere if name in chosen]
    errs = {k: v for found in sets.values() for each in found for k, v in each.directions().items()}
    by_metric = {
        metric: [
            over_runs(
                f"{metric}: {name}",
                known,
                direction=errs[metric],
                notes="" if known else "not defined in any run of this set",
            )
            for name, runs in values.items()
            for known in [_known(runs, metric)]
        ]
        for metric in metrics
    }
    drawings: list[DotPlot | CurvePlot] = [
        *_dots(metrics, values),
        *(each for each in curves if each.title in chosen),
    ]
    base, *others = sets
    pairs = [(base, other) for other in others]
    differences = {metric: _differences(errs, metric, sets, pairs) for metric in metrics}
    equal = _equal(metrics, [run for runs in values.values() for run in runs])
    notes = [f"not in every set: {_listed(left_out)}"] if left_out else []
    notes += dict.fromkeys(note for pair in pairs for note in _unpaired(sets, *pair))
    notes += _at_different_steps(metrics, [each for found in sets.values() for each in found])
    notes += undrawn(drawings)
    notes += dict.fromkeys(
        f"of a run's own study: {note}"
        for found in sets.values()
        for each in found
        for note in each.result.notes
    )
    return Result(
        measure=f"compare-{measure}",
        title=f"Sets of runs, by {measure}: {', '.join(sets)}",
        definition=f"{first.definition} Here: means over training runs, and differences between "
        "runs of one seed.",
        estimates=[*chain(*differences.values()), *chain(*by_metric.values())],
        equal={
            metric: [each.name for each in (*differences[metric], *by_metric[metric])]
            for metric in equal
        },
        tables=[_each_run(metrics, sets)] if metrics else [],
        drawings=drawings,
        params={
            name: ", ".join(f"{each.reference} (seed {each.seed})" for each in found)
            for name, found in sets.items()
        },
        notes=notes,
    )


def choose(names: Sequence[str], only: Sequence[str]) -> set[str]:
    """Return the names that contain one of `only`; all names if it is empty.

    Words that are a whole name choose this metric, with its first and latest value, gain and mean,
    and not the longer names that contain them. Raises ConfigError for words that no name contains.
    """
    found: set[str] = set() if only else set(names)
    for words in only:
        having = {name for name in names if words in name}
        if not having:
            known = ", ".join(dict.fromkeys(names))
            raise ConfigError(f"--only {words}: no such metric; choose from: {known}")
        whole = {name for name in having if name == words or name.startswith(f"{words}, ")}
        found |= whole if words in whole else having
    return found


def _metrics(values: Mapping[str, Sequence[Values]]) -> tuple[list[str], list[str]]:
    """Return the metrics that every set has, in their order, and those that only some have."""
    have = [{name for run in runs for name in run} for runs in values.values()]
    known = dict.fromkeys(name for runs in values.values() for run in runs for name in run)
    return (
        [name for name in known if all(name in names for names in have)],
        [name for name in known if not all(name in names for names in have)],
    )


def _known(runs: Sequence[Values], metric: str) -> list[float]:
    """Return the finite values of a metric."""
    found = [run.get(metric, np.nan) for run in runs]
    return [value for value in found if np.isfinite(value)]


def _equal(metrics: Sequence[str], runs: Sequence[Values]) -> list[str]:
    """Return the metrics that are equal in all runs; [] for one run, or if no metric differs."""
    found = [
        metric
        for metric in metrics
        if len(runs) > 1
        and len(known := _known(runs, metric)) == len(runs)
        and len(set(known)) == 1
    ]
    return found if len(found) < len(metrics) else []


def _seeds(sets: Mapping[str, Sequence[MeasuredRun]], *names: str) -> list[int]:
    """Return the seeds that each of these sets has exactly once."""
    seeds = [[each.seed for each in sets[name]] for name in names]
    return [seed for seed in seeds[0] if all(each.count(seed) == 1 for each in seeds)]


def _unpaired(sets: Mapping[str, Sequence[MeasuredRun]], a: str, b: str) -> list[str]:
    """Return notes on the runs of two sets that no difference uses: those that share a seed within
    their set, or all runs if the sets have no common seed."""
    seeds = {name: [each.seed for each in sets[name]] for name in (a, b)}
    common = sorted(set(seeds[a]) & set(seeds[b]))
    if not common:
        return [f"{a} and {b} have no common seeds, so there is no difference"]
    several = {
        name: [str(seed) for seed in common if found.count(seed) > 1]
        for name, found in seeds.items()
    }
    return [
        f"differences leave out the runs of {name} that share a seed: {', '.join(repeated)}"
        for name, repeated in several.items()
        if repeated
    ]


def _at_different_steps(metrics: Sequence[str], runs: Sequence[MeasuredRun]) -> list[str]:
    """Return a note if the values of a metric are of different steps; [] otherwise."""
    known = [run.steps() for run in runs]
    steps = {name: {found[name] for found in known if name in found} for name in metrics}
    apart = [name for name in metrics if len(steps[name]) > 1]
    if not apart:
        return []
    every = set[int]().union(*(steps[name] for name in apart))
    return [
        f"values of the steps {min(every)} to {max(every)} are compared, because the runs differ "
        f"in length or in their recorded steps: {_listed(apart)}"
    ]


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{'; '.join(names[:NAMED])}{more}"


def _differences(
    errs: Mapping[str, Direction],
    metric: str,
    sets: Mapping[str, Sequence[MeasuredRun]],
    pairs: Sequence[tuple[str, str]],
) -> list[Estimate]:
    found = []
    for a, b in pairs:
        by_seed = [{each.seed: each.values() for each in sets[name]} for name in (a, b)]
        values = [
            by_seed[1][seed].get(metric, np.nan) - by_seed[0][seed].get(metric, np.nan)
            for seed in _seeds(sets, a, b)
        ]
        known = [value for value in values if np.isfinite(value)]
        if known:
            name, notes, direction = f"{metric}: {b} less {a}", "paired by seed", errs[metric]
            if direction != "unbiased":  # the two biases may differ
                notes += f"; each of the two is {direction.replace('_', ' ')}"
                direction = "unknown"
            more: dict[str, Any] = {"direction": direction, "notes": notes}
            found.append(over_runs(name, known, null=0.0, **more))
    return found


def _each_run(metrics: Sequence[str], sets: Mapping[str, Sequence[MeasuredRun]]) -> Table:
    most = max(len(found) for found in sets.values())
    rows: list[list[Cell]] = []
    for metric in metrics:
        for name, found in sets.items():
            cells: list[Cell] = [each.values().get(metric, np.nan) for each in found]
            rows.append([metric, name, *cells, *[None] * (most - len(found))])
    same = len({tuple(each.seed for each in found) for found in sets.values()}) == 1
    seeds = [f"seed {each.seed}" for each in next(iter(sets.values()))]
    heads = seeds if same and len(set(seeds)) == most else [f"run {n + 1}" for n in range(most)]
    return Table(title="Each run", columns=["metric", "set", *heads], rows=rows)


def _dots(metrics: Sequence[str], values: Mapping[str, Sequence[Values]]) -> list[DotPlot]:
    """Return one plot for each order of magnitude; metrics within [-1, 1] share a plot."""
    groups: dict[int, list[str]] = {}
    for metric in metrics:
        known = [abs(value) for runs in values.values() for value in _known(runs, metric)]
        if known:
            groups.setdefault(max(math.ceil(math.log10(max(*known, 1.0))), 0), []).append(metric)
    return [
        DotPlot(
            title="Each run a dot, a bar at the mean",
            rows=group,
            sets={
                name: [[run.get(metric, np.nan) for run in runs] for metric in group]
                for name, runs in values.items()
            },
            label="value",
            null=0.0,
        )
        for _, group in sorted(groups.items())
    ]


def _curves(sets: Mapping[str, Sequence[MeasuredRun]]) -> list[CurvePlot]:
    """Return the curves that all runs have: mean, lowest and highest run of each set."""
    drawn = {
        name: [
            {each.title: each for each in one.result.drawings if isinstance(each, CurvePlot)}
            for one in found
        ]
        for name, found in sets.items()
    }
    pictures = [picture for found in drawn.values() for picture in found]
    return [
        mean_curves({name: [picture[title] for picture in found] for name, found in drawn.items()})
        for title in pictures[0]
        if all(title in picture for picture in pictures)
    ]


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    measure = measures()[options.of]
    for option in MEASURE.options:
        given = getattr(options, option.name) != option.default
        if given and option is not ONLY and measure.option(option.name) is None:
            raise ConfigError(f"--{option.name}: {options.of} has no such option")

    sets = parse_sets(options.run)
    runs = [reference.run for references in sets.values() for reference in references]
    shared = measure.shared(runs, options) if measure.shared else {}

    def measure_run(reference: Reference) -> Result:
        run = {"run": reference.run, "player": str(reference), "players": [str(reference)]}
        defaults = {option.name: option.default for option in measure.options}
        given = {**defaults, **vars(options), **shared, "run": run[measure.target]}
        if measure.target == "run" and (step := step_of(reference, measure)) is not None:
            given["step"] = step
        try:
            return measure.run(argparse.Namespace(**given))
        except ConfigError as error:
            where = "" if str(reference.run) in str(error) else f"{reference}: "
            raise ConfigError(f"{where}{error}") from error

    return study(options.of, measure_all(sets, measure_run), only=options.only or ())


MEASURE = Measure(
    name="compare",
    help="a measure of one run, over sets of runs: means, and differences paired by seed",
    target="sets",
    run=from_options,
    options=(
        *(*PLAYING, COOPERATE, DEFAULT, PAY, ROLE, SAMPLES, BUDGET, ALL, ONLY, RANGES, DERIVED),
        EQUAL,
    ),
    comparable=False,
)
"""The measure `compare` of the command line."""
