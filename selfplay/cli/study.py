"""The command `selfplay study`. Nothing heavy is loaded before a study begins."""

import argparse
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from selfplay.errors import ConfigError
from selfplay.study.registry import MEASURES, OPTIONS, PLAYER, SINGLE

if TYPE_CHECKING:
    from selfplay.study.result import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `selfplay study` takes."""
    measures = parser.add_subparsers(
        title="measures", dest="measure", required=True, metavar="MEASURE"
    )
    for name, measure in MEASURES.items():
        made = measures.add_parser(name, allow_abbrev=False, help=measure.help)
        if measure.runs == "run":
            made.add_argument("run", type=Path)
        elif measure.runs == "player":
            made.add_argument("run", help=PLAYER)
        elif measure.runs == "sets":
            made.add_argument("of", choices=SINGLE, metavar="MEASURE", help="what is compared")
            made.add_argument(
                "run",
                nargs="+",
                metavar="NAME=RUN",
                help=f"a set of runs: {PLAYER}; with wildcards, or NAME=RUN several times",
            )
        else:
            made.add_argument("run", nargs="+", help=PLAYER)
        for option in measure.options:
            made.add_argument(f"--{option}", **OPTIONS[option])
        made.add_argument("--json", action="store_true", help="print the figures as JSON")
        made.add_argument(
            "--trust",
            action="append",
            default=[],
            metavar="PACKAGE",
            help="run code of this package where the run's config names it; may be repeated",
        )
        made.add_argument(
            "--out", type=Path, metavar="FOLDER", help="where page and pictures go; RUN/studies"
        )


def run(options: argparse.Namespace) -> None:
    """Measure, write the page, and print."""
    from selfplay.run.report.html import visible
    from selfplay.study import page, registry

    measure = MEASURES[options.measure]
    episodes = getattr(options, "episodes", None)
    if episodes is not None and episodes < 1:
        raise ConfigError(f"--episodes {episodes}: at least 1 is needed")
    if measure.runs == "run":
        _refuse_step(options.measure, options.run)
    study: Callable[[argparse.Namespace], Result] = getattr(registry, options.measure)
    result = study(options)
    written = page.write(result, options.out or _folder(options), command=command(options))
    if options.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        # What agents said stands in some tables, and a terminal obeys control characters.
        print(f"{visible(result.to_text())}\n\npage  {written}")


def _refuse_step(measure: str, run: Path) -> None:
    """Raise ConfigError for RUN@STEP where a whole run is measured."""
    folder, at, step = str(run).rpartition("@")
    if at and Path(folder).is_dir() and not run.exists():
        instead = (
            f", or write {folder} --step {step}" if "step" in MEASURES[measure].options else ""
        )
        raise ConfigError(f"{run}: {measure} is of a whole run; drop the @{instead}")


def command(options: argparse.Namespace) -> str:
    """What to type to measure it again."""
    runs = options.run if isinstance(options.run, list) else [options.run]
    words = ["selfplay", "study", options.measure]
    words += [options.of] if options.measure == "compare" else []
    words += map(str, runs)
    for option in (*MEASURES[options.measure].options, "trust", "out"):
        value = getattr(options, option)
        if value is None or value is False:  # and 0 is given: it is a step, and equal to False
            continue
        if value is True:
            words.append(f"--{option}")
        elif isinstance(value, list):
            words += [word for each in value for word in (f"--{option}", each)]
        elif value != OPTIONS.get(option, {}).get("default"):
            words += [f"--{option}", str(value)]
    return shlex.join(words)


def _folder(options: argparse.Namespace) -> Path:
    """The first run's own folder of studies."""
    from selfplay.study.players import Reference

    first = options.run[0] if isinstance(options.run, list) else str(options.run)
    if options.measure == "compare":
        from selfplay.study.measures.compare import parse_sets

        return next(iter(parse_sets([first]).values()))[0].run / "studies"
    return Reference.parse(first).run / "studies"
