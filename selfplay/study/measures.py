"""What the command line knows of the measures: a line for each, and the options that they take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What the command line knows of a measure. The function of its name in
    `selfplay.study.studies` makes it from the options."""

    help: str
    """What it says, in a line."""
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
        runs="run",
        options=("step", "all", "policy"),
    ),
    "passk": Measure(
        help="pass@k before and after training: sharper, or able to do more",
        runs="player",
        options=("evaluation", "metric", "role", "samples", "seed", "set"),
    ),
    "dynamics": Measure(
        help="what a run recorded, by step: cycles, diversity, drift of language, length",
        runs="run",
        options=("metric", "seed"),
    ),
    "transfer": Measure(
        help="policies of each run in the games of every other",
        runs="players",
        options=("evaluation", "episodes", "seed"),
    ),
    "hacking": Measure(
        help="signs of reward hacking: degenerate tasks, copying, collusion, conformity, judges",
        runs="players",
        options=PLAYING,
    ),
    "counterfactual": Measure(
        help="what actions were worth, by replay without them, and what was learned of them",
        runs="players",
        options=(*PLAYING, "default", "role"),
    ),
    "exploit": Measure(
        help="what best responses gain that are trained against the frozen player: lower bounds",
        runs="player",
        options=("evaluation", "episodes", "budget", "seed", "set"),
    ),
    "roleswap": Measure(
        help="trained and untrained policies in every combination of seats",
        runs="players",
        options=PLAYING,
    ),
    "crossplay": Measure(
        help="every player with every other: the gap of self-play to cross-play",
        runs="players",
        options=PLAYING,
    ),
    "payoffs": Measure(
        help="who beats whom: Nash averaging, alpha-rank, and whether there is an order or cycles",
        runs="players",
        options=("opponent", "evaluation", "episodes", "seed", "set"),
    ),
    "ablate": Measure(
        help="what is lost when words are dropped, shuffled or replaced",
        runs="player",
        options=PLAYING,
    ),
    "influence": Measure(
        help="how far words move what others do: listening, signalling, causal influence",
        runs="player",
        options=PLAYING,
    ),
    "reciprocity": Measure(
        help="cooperation after cooperation and after defection, in repeated dilemmas",
        runs="player",
        options=(*PLAYING, "cooperate"),
    ),
    "compare": Measure(
        help="any measure of one run, over sets of runs: means, and differences by seed",
        runs="sets",
        options=(*PLAYING, "cooperate", "default", "role", "samples", "budget", "only"),
    ),
}
SEVERAL = ("crossplay", "payoffs", "transfer", "compare")
SINGLE = tuple(name for name in MEASURES if name not in SEVERAL)
"""Measures of one run, which `compare` makes of each."""
