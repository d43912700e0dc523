"""The command `selfplay study`. Nothing heavy is loaded before a study begins."""

import argparse
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfplay.errors import ConfigError

if TYPE_CHECKING:
    from selfplay.study.result import Result


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What the command line knows of a measure; `selfplay.study.<module>` has the rest."""

    help: str
    """What it says, in a line."""
    study: str
    """The function of `selfplay.study.studies` that makes it from the options."""
    runs: str
    """"run", one; "player", RUN, RUN@STEP or RUN@start; "players", several of these; or "sets", a
    measure and sets of them."""
    options: tuple[str, ...] = ()
    """Names of the options that it takes besides those of all."""


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "step": {"type": int, "metavar": "N", "help": "its checkpoint of step N"},
    "all": {"action": "store_true", "help": "every checkpoint that the run kept"},
    "policy": {"metavar": "NAME", "help": "seat this policy everywhere"},
    "evaluation": {"metavar": "NAME", "help": "whose games are played; the run's first"},
    "episodes": {"type": int, "metavar": "N", "help": "episodes per cell; as the evaluation has"},
    "metric": {
        "metavar": "NAME",
        "help": "what is compared: a metric of the arena, return, or return/AGENT",
    },
    "default": {"metavar": "TEXT", "help": "the action in place of the one that is judged"},
    "role": {"metavar": "NAME", "help": "whose actions count; all roles'"},
    "cooperate": {
        "default": "cooperate",
        "metavar": "MOVE",
        "help": "the move that is cooperation",
    },
    "budget": {"type": int, "default": 2000, "metavar": "N", "help": "games of training per seat"},
    "samples": {"type": int, "default": 16, "metavar": "N", "help": "samples per task"},
    "opponent": {
        "action": "append",
        "metavar": "NAME",
        "help": "whom the first run can seat, as a player too: an opponent of its population, or a "
        "snapshot of its league; may be given several times",
    },
    "seed": {"type": int, "default": 0, "metavar": "N", "help": "of luck and samples"},
    "only": {
        "action": "append",
        "metavar": "WORDS",
        "help": "figures and pictures whose names have these words; may be given several times",
    },
    "set": {
        "action": "append",
        "metavar": "KEY=VALUE",
        "help": "change the games' config, such as arena.rounds=4; may be given several times",
    },
}
"""Options of measures, each as argparse takes it."""

PLAYER = "RUN, RUN@STEP or RUN@start (before training)"
PLAYING = ("evaluation", "episodes", "metric", "seed", "set")

MEASURES: Mapping[str, Measure] = {
    "exploitability": Measure(
        help="what best responses gain, exactly, in a game that OpenSpiel knows",
        study="exploitability",
        runs="run",
        options=("step", "all", "policy"),
    ),
    "passk": Measure(
        help="pass@k before and after training: sharper, or able to do more",
        study="passk",
        runs="player",
        options=("evaluation", "metric", "role", "samples", "seed", "set"),
    ),
    "dynamics": Measure(
        help="what a run recorded, by step: cycles, diversity, drift of language, length",
        study="dynamics",
        runs="run",
        options=("metric", "seed"),
    ),
    "transfer": Measure(
        help="policies of each run in the games of every other",
        study="transfer",
        runs="players",
        options=("evaluation", "episodes", "seed"),
    ),
    "hacking": Measure(
        help="signs of reward hacking: degenerate tasks, copying, collusion, conformity, judges",
        study="hacking",
        runs="players",
        options=PLAYING,
    ),
    "counterfactual": Measure(
        help="what actions were worth, by replay without them, and what was learned of them",
        study="counterfactual",
        runs="players",
        options=(*PLAYING, "default", "role"),
    ),
    "exploit": Measure(
        help="what best responses gain that are trained against the frozen player: lower bounds",
        study="exploit",
        runs="player",
        options=("evaluation", "episodes", "budget", "seed", "set"),
    ),
    "roleswap": Measure(
        help="trained and untrained policies in every combination of seats",
        study="roleswap",
        runs="players",
        options=PLAYING,
    ),
    "crossplay": Measure(
        help="every player with every other: the gap of self-play to cross-play",
        study="crossplay",
        runs="players",
        options=PLAYING,
    ),
    "payoffs": Measure(
        help="who beats whom: Nash averaging, alpha-rank, and whether there is an order or cycles",
        study="payoffs",
        runs="players",
        options=("opponent", "evaluation", "episodes", "seed", "set"),
    ),
    "ablate": Measure(
        help="what is lost when words are dropped, shuffled or replaced",
        study="ablate",
        runs="player",
        options=PLAYING,
    ),
    "influence": Measure(
        help="how far words move what others do: listening, signalling, causal influence",
        study="influence",
        runs="player",
        options=PLAYING,
    ),
    "reciprocity": Measure(
        help="cooperation after cooperation and after defection, in repeated dilemmas",
        study="reciprocity",
        runs="player",
        options=(*PLAYING, "cooperate"),
    ),
    "compare": Measure(
        help="any measure of one run, over sets of runs: means, and differences by seed",
        study="compare",
        runs="sets",
        options=(*PLAYING, "cooperate", "default", "role", "samples", "budget", "only"),
    ),
}
SEVERAL = ("crossplay", "payoffs", "transfer", "compare")
SINGLE = tuple(name for name in MEASURES if name not in SEVERAL)
"""Measures of one run, which `compare` makes of each."""


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
            "--out", type=Path, metavar="FOLDER", help="where page and pictures go; RUN/studies"
        )


def run(options: argparse.Namespace) -> None:
    """Measure, write the page, and print."""
    from selfplay.pages import visible
    from selfplay.study import page, studies

    measure = MEASURES[options.measure]
    episodes = getattr(options, "episodes", None)
    if episodes is not None and episodes < 1:
        raise ConfigError(f"--episodes {episodes}: at least 1 is needed")
    if measure.runs == "run":
        _refuse_step(options.measure, options.run)
    study: Callable[[argparse.Namespace], Result] = getattr(studies, measure.study)
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
    for option in (*MEASURES[options.measure].options, "out"):
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
        from selfplay.study.sets import parse_sets

        return next(iter(parse_sets([first]).values()))[0].run / "studies"
    return Reference.parse(first).run / "studies"
