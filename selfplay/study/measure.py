"""Declaration of a measure: its name, its help, its options and the function that computes it.

Each module of `selfplay.study.measures` that assigns `MEASURE` declares one measure of the command
`selfplay study`. `selfplay.study.registry` finds these modules.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from selfplay.errors import ConfigError
from selfplay.study.matches import StudyMatches, games_of
from selfplay.study.players import START, Reference, StudyPlayer
from selfplay.study.result import Result


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a measure on the command line."""

    name: str
    """Name without the two dashes, and attribute of the parsed options."""
    help: str
    """Help in one line."""
    type: Callable[[str], Any] = str
    """Function that converts the text to a value."""
    default: Any = None
    """Value without the option."""
    metavar: str | None = None
    """Placeholder of the value in the help; None for a flag, which takes no value."""
    repeated: bool = False
    """True if the option may be given several times; its value is then a list."""

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the option to a parser."""
        if self.metavar is None:
            parser.add_argument(f"--{self.name}", action="store_true", help=self.help)
            return
        parser.add_argument(
            f"--{self.name}",
            action="append" if self.repeated else "store",
            type=self.type,
            default=self.default,
            metavar=self.metavar,
            help=self.help,
        )


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure of `selfplay study`. Its module makes it; the command line reads it."""

    name: str
    """Name on the command line."""
    help: str
    """Help in one line."""
    target: Literal["run", "player", "players", "sets"]
    """Positional argument: one run folder; one player; several players; or another measure and
    several NAME=RUN. A player is RUN, RUN@STEP or RUN@start."""
    run: Callable[[argparse.Namespace], Result]
    """Function that computes the result from the parsed options."""
    options: Sequence[Option] = ()
    """Options besides --json, --trust and --out."""
    comparable: bool = True
    """True if the measure can be computed for a single run, as `compare` does for each run."""
    shared: Callable[[Sequence[Path], argparse.Namespace], Mapping[str, Any]] | None = None
    """Function that returns further attributes of the options for each of the runs that `compare`
    measures, from the folders of all of them and from the options; None: there are none."""
    extra: str = ""
    """Extra of this library that the measure always needs, such as "games"; the help names it."""

    def option(self, name: str) -> Option | None:
        """Return the option of this name; None if the measure has no such option."""
        return next((option for option in self.options if option.name == name), None)


EVALUATION = Option(
    name="evaluation", metavar="NAME", help="evaluation whose games are played (default: first)"
)
EPISODES = Option(
    name="episodes", type=int, metavar="N", help="episodes per cell (default: the evaluation's)"
)
METRIC = Option(
    name="metric",
    metavar="NAME",
    help="metric to compare: a metric of the arena, return, or return/AGENT",
)
SEED = Option(name="seed", type=int, default=0, metavar="N", help="seed of arenas and samples")
CHANGES = Option(
    name="set",
    metavar="KEY=VALUE",
    repeated=True,
    help="change the games' config, such as arena.rounds=4; may be given several times",
)
PLAYING = (EVALUATION, EPISODES, METRIC, SEED, CHANGES)
"""Options of most measures that play games."""

ROLE = Option(name="role", metavar="NAME", help="role whose actions count (default: all)")
DEFAULT = Option(
    name="default",
    metavar="TEXT",
    help="action that replaces the judged one",
)
PAY = Option(
    name="pay",
    default="team",
    metavar="WHOSE",
    help="return that an action is judged by: team (mean over agents, the default), or own",
)
COOPERATE = Option(
    name="cooperate",
    default="cooperate",
    metavar="MOVE",
    help="move that counts as cooperation (default cooperate)",
)
BUDGET = Option(
    name="budget", type=int, default=2000, metavar="N", help="games of training per seat"
)
SAMPLES = Option(name="samples", type=int, default=16, metavar="N", help="samples per task")
ALL = Option(name="all", default=False, help="all checkpoints that the run kept")
ONLY = Option(
    name="only",
    metavar="WORDS",
    repeated=True,
    help="only metrics and pictures whose names contain these words; may be repeated",
)
RANGES = Option(
    name="steps",
    metavar="A:B",
    repeated=True,
    help="means of metrics over these steps, both included; may be repeated, for the change",
)
DERIVED = Option(
    name="derive",
    metavar="NAME=EXPRESSION",
    repeated=True,
    help="another metric, computed from recorded ones: 'added={arena/last} - {arena/first}'",
)
EQUAL = Option(
    name="equal",
    metavar="METRIC",
    help="compare at equal cost: end each record at the last step at which its sum of this metric, "
    "such as engine/base/completion_tokens, is at most 1 %% above the smallest total of all runs",
)


def references_of(options: argparse.Namespace) -> list[Reference]:
    """Return the players that the command line names.

    Raises ConfigError if one is named twice: two names of one run are the same player if they
    lead to the same checkpoint.
    """
    references = [Reference.parse(text) for text in options.run]
    runs = [reference.run.resolve() for reference in references]
    found: dict[tuple[Path, str], Reference] = {}
    for reference, run in zip(references, runs, strict=True):
        if runs.count(run) == 1:
            continue
        place = reference.place()
        first = found.setdefault((run, START if place is None else place.name), reference)
        if first is not reference:
            also = "named twice" if str(first) == str(reference) else f"the same player as {first}"
            raise ConfigError(f"{reference}: {also}; name different players")
    return references


def references_or_start(options: argparse.Namespace, measure: str) -> list[Reference]:
    """Return the players that the command line names.

    If it names only one, the second player is its policies before training, see `start_of`.
    """
    references = references_of(options)
    if len(references) > 1:
        return references
    return [references[0], start_of(references[0], measure)]


def start_of(reference: Reference, measure: str) -> Reference:
    """Return the policies before training, with which a measure compares a player.

    Raises ConfigError if the player itself is the policies before training.
    """
    if reference.start:
        raise ConfigError(
            f"{reference}: {measure} compares with the policy before training, and this is it; "
            f"name {reference.run}, or {reference.run}@STEP"
        )
    return Reference(run=reference.run, start=True)


def step_of(reference: Reference, measure: Measure) -> int | None:
    """Return the step of a reference for a measure of runs; None for RUN.

    Raises ConfigError for a step if the measure needs a whole run, and for RUN@start.
    """
    if str(reference) == str(reference.run):
        return None
    if measure.option("step") is None:
        raise ConfigError(f"{reference}: {measure.name} measures a whole run; drop the @")
    if reference.step is None:
        raise ConfigError(
            f"{reference}: {measure.name} takes a step; name {reference.run}@0 for the policies "
            "before training"
        )
    return reference.step


@contextmanager
def open_games(options: argparse.Namespace, run: Path) -> Iterator[StudyMatches]:
    """Open the games of a run under the options of `PLAYING` that the measure has."""
    changes: list[str] = options.set or []
    for change in changes:
        if "=" not in change or change.startswith("-"):
            raise ConfigError(f"--set {change}: write KEY=VALUE, such as arena.rounds=4")
    with games_of(
        run,
        evaluation=options.evaluation,
        episodes=getattr(options, "episodes", None),
        metric=getattr(options, "metric", None),
        seed=options.seed,
        changes=changes,
    ) as games:
        yield games


def measure_one(
    options: argparse.Namespace, study: Callable[[StudyMatches, StudyPlayer], Result]
) -> Result:
    """Apply a study of one player to the player that the command line names."""
    reference = Reference.parse(options.run)
    with open_games(options, reference.run) as games:
        (player,) = games.admit([reference])
        return study(games, player)
