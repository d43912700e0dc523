"""The command `selfplay study`. Models and torch are loaded only when a study begins."""

import argparse
import json
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from selfplay.cli.arguments import takes_run
from selfplay.errors import ConfigError
from selfplay.run.run_folder import STUDIES
from selfplay.study.registry import comparable, measures

if TYPE_CHECKING:
    from selfplay.study.measure import Measure

PLAYER = "RUN, RUN@STEP or RUN@start (before training)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each measure, with its options."""
    subparsers = parser.add_subparsers(
        title="measures", dest="measure", required=True, metavar="MEASURE"
    )
    for name, measure in measures().items():
        made = subparsers.add_parser(
            name, allow_abbrev=False, help=measure.help, description=_description(measure)
        )
        if measure.target == "run":
            takes_run(made)
        elif measure.target == "player":
            made.add_argument("run", metavar="RUN", help=PLAYER)
        elif measure.target == "sets":
            made.add_argument(
                "of", choices=comparable(), metavar="MEASURE", help="measure to compare"
            )
            made.add_argument(
                "run",
                nargs="+",
                metavar="NAME=RUN",
                help=f"set and run; {PLAYER}; wildcards are allowed; may be repeated",
            )
        else:
            made.add_argument("run", nargs="+", metavar="RUN", help=PLAYER)
        for option in measure.options:
            option.add_to(made)
        made.add_argument("--json", action="store_true", help="print the result as JSON")
        made.add_argument(
            "--trust",
            action="append",
            default=[],
            metavar="PACKAGE",
            help="allow code of this package in the run's config; may be repeated",
        )
        made.add_argument(
            "--out",
            type=Path,
            metavar="FOLDER",
            help="folder of the page and pictures (default: RUN/studies)",
        )


def _description(measure: "Measure") -> str:
    """Return the first paragraph of the measure's module, and the extra that the measure needs."""
    documented = sys.modules[measure.run.__module__].__doc__ or measure.help
    paragraph = " ".join(documented.partition("\n\n")[0].split())
    if not measure.extra:
        return paragraph
    setup = f"./scripts/setup {measure.extra}"
    return f"{paragraph} It needs selfplay[{measure.extra}]: run {setup} first."


def run(options: argparse.Namespace) -> None:
    """Compute the measure, write the page, and print the result."""
    from selfplay.author_code import naming
    from selfplay.run.activity import ACTIVITY, ActivityFile, study_file
    from selfplay.run.report.html import visible
    from selfplay.study import page

    measure = measures()[options.measure]
    episodes = getattr(options, "episodes", None)
    if episodes is not None and episodes < 1:
        raise ConfigError(f"--episodes {episodes}: at least 1 is needed")
    seed = getattr(options, "seed", None)
    if seed is not None and seed < 0:
        raise ConfigError(f"--seed {seed}: at least 0 is needed")
    if measure.target == "run":
        _take_step(options)
    folder = options.out or _folder(options)
    ACTIVITY.begin("loading models")
    # A warm start that is made again prints its progress, which is no part of the result.
    work = ActivityFile(folder, name=study_file(options.measure), at_once=False)
    with redirect_stdout(sys.stderr), work, naming(f"study {measure.name}", measure):
        result = measure.run(options)
    # Some tables contain words of agents, and a terminal obeys control characters. The result is
    # printed first, because the folder of the page may not be writable.
    print(json.dumps(result.to_json(), indent=2) if options.json else visible(result.to_text()))
    written = page.write(result, folder, command=command(options))
    if not options.json:
        print(f"\npage  {written}")


def refuse_more_runs(options: argparse.Namespace, rest: list[str]) -> None:
    """Raise ConfigError for a second run of a measure of one run, with the command to compare."""
    name = options.measure
    if not rest or rest[0].startswith("-") or isinstance(options.run, list):
        return
    advice = f"measure {rest[0]} with a second command"
    if name in comparable():
        advice = f"compare them: selfplay study compare {name} A={options.run} B={rest[0]}"
    raise ConfigError(f"study {name} measures one run, and {rest[0]!r} is one more; {advice}")


def _take_step(options: argparse.Namespace) -> None:
    """Read RUN@STEP as RUN --step STEP; raise ConfigError if the measure needs a whole run."""
    from selfplay.study.measure import step_of
    from selfplay.study.players import Reference

    reference = Reference.parse(str(options.run))
    step = step_of(reference, measures()[options.measure])
    if step is None:
        return
    if options.step is not None:
        raise ConfigError(f"{reference} has a step, and so has --step; give one of them")
    options.run, options.step = reference.run, step


def command(options: argparse.Namespace) -> str:
    """Return the command line that repeats the study."""
    runs = options.run if isinstance(options.run, list) else [options.run]
    words = ["selfplay", "study", options.measure]
    words += [options.of] if options.measure == "compare" else []
    words += map(str, runs)
    defaults = {option.name: option.default for option in measures()[options.measure].options}
    for option in (*defaults, "trust", "out"):
        value = getattr(options, option)
        if value is None or value is False:  # `is`, because step 0 equals False
            continue
        if value is True:
            words.append(f"--{option}")
        elif isinstance(value, list):
            words += [word for each in value for word in (f"--{option}", each)]
        elif value != defaults.get(option):
            words += [f"--{option}", str(value)]
    return shlex.join(words)


def _folder(options: argparse.Namespace) -> Path:
    """Return the folder of studies of the first run."""
    from selfplay.study.players import Reference

    first = options.run[0] if isinstance(options.run, list) else str(options.run)
    if options.measure == "compare":
        from selfplay.study.measures.compare import parse_sets

        return next(iter(parse_sets([first]).values()))[0].run / STUDIES
    return Reference.parse(first).run / STUDIES
