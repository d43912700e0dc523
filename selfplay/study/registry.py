"""What the command line knows of the measures: a line for each, and the options that they take.

From the options of the command line to the studies: a function for each measure.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from selfplay.errors import ConfigError
from selfplay.study.matches import StudyMatches, games_of
from selfplay.study.players import Reference, StudyPlayer, untrained
from selfplay.study.result import Result


@dataclass(frozen=True, kw_only=True)
class MeasureSpec:
    """What the command line knows of a measure. The function of its name in
    `selfplay.study.registry` makes it from the options."""

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

MEASURES: Mapping[str, MeasureSpec] = {
    "exploitability": MeasureSpec(
        help="what best responses gain, exactly, in a game that OpenSpiel knows",
        runs="run",
        options=("step", "all", "policy"),
    ),
    "passk": MeasureSpec(
        help="pass@k before and after training: sharper, or able to do more",
        runs="player",
        options=("evaluation", "metric", "role", "samples", "seed", "set"),
    ),
    "dynamics": MeasureSpec(
        help="what a run recorded, by step: cycles, diversity, drift of language, length",
        runs="run",
        options=("metric", "seed"),
    ),
    "transfer": MeasureSpec(
        help="policies of each run in the games of every other",
        runs="players",
        options=("evaluation", "episodes", "seed"),
    ),
    "hacking": MeasureSpec(
        help="signs of reward hacking: degenerate tasks, copying, collusion, conformity, judges",
        runs="players",
        options=PLAYING,
    ),
    "counterfactual": MeasureSpec(
        help="what actions were worth, by replay without them, and what was learned of them",
        runs="players",
        options=(*PLAYING, "default", "role"),
    ),
    "exploit": MeasureSpec(
        help="what best responses gain that are trained against the frozen player: lower bounds",
        runs="player",
        options=("evaluation", "episodes", "budget", "seed", "set"),
    ),
    "roleswap": MeasureSpec(
        help="trained and untrained policies in every combination of seats",
        runs="players",
        options=PLAYING,
    ),
    "crossplay": MeasureSpec(
        help="every player with every other: the gap of self-play to cross-play",
        runs="players",
        options=PLAYING,
    ),
    "payoffs": MeasureSpec(
        help="who beats whom: Nash averaging, alpha-rank, and whether there is an order or cycles",
        runs="players",
        options=("opponent", "evaluation", "episodes", "seed", "set"),
    ),
    "ablate": MeasureSpec(
        help="what is lost when words are dropped, shuffled or replaced",
        runs="player",
        options=PLAYING,
    ),
    "influence": MeasureSpec(
        help="how far words move what others do: listening, signalling, causal influence",
        runs="player",
        options=PLAYING,
    ),
    "reciprocity": MeasureSpec(
        help="cooperation after cooperation and after defection, in repeated dilemmas",
        runs="player",
        options=(*PLAYING, "cooperate"),
    ),
    "compare": MeasureSpec(
        help="any measure of one run, over sets of runs: means, and differences by seed",
        runs="sets",
        options=(*PLAYING, "cooperate", "default", "role", "samples", "budget", "only"),
    ),
}
SEVERAL = ("crossplay", "payoffs", "transfer", "compare")
SINGLE = tuple(name for name in MEASURES if name not in SEVERAL)
"""Measures of one run, which `compare` makes of each."""


def exploitability(options: argparse.Namespace) -> Result:
    """What best responses gain, exactly."""
    from selfplay.study.measures.exploitability import result, study

    if options.all and options.step is not None:
        raise ConfigError("--all measures every checkpoint and --step one of them; drop either")
    found = study(options.run, step=options.step, every=options.all, policy=options.policy)
    return result(options.run, found)


def counterfactual(options: argparse.Namespace) -> Result:
    """Whether what helped is what was learned."""
    from selfplay.study.measures.counterfactual import study

    if options.default is None:
        raise ConfigError(
            "counterfactual: needs --default TEXT, the action in place of the one that is judged, "
            """such as --default '{"event":"NOOP"}' of a memory manager"""
        )
    references = _references(options)
    if len(references) == 1:
        references.append(Reference(run=references[0].run, start=True))
    with _games(options, references[0].run) as games:
        return study(games, games.admit(references), default=options.default, role=options.role)


def roleswap(options: argparse.Namespace) -> Result:
    """Who learned what, seat by seat."""
    from selfplay.study.measures.role_swap import study

    references = _references(options)
    if len(references) == 1:
        references.append(Reference(run=references[0].run, start=True))
    with _games(options, references[0].run) as games:
        return study(games, games.admit(references))


def crossplay(options: argparse.Namespace) -> Result:
    """Every player with every other."""
    from selfplay.study.measures.cross_play import study

    references = _references(options)
    runs = {reference.run.resolve() for reference in references}
    with _games(options, references[0].run) as games:
        players = games.admit(references)
        return study(games, players, independent=len(runs) == len(references))


def payoffs(options: argparse.Namespace) -> Result:
    """Who beats whom."""
    from selfplay.study.measures.payoffs import study

    references = _references(options)
    with _games(options, references[0].run) as games:
        opponents = games.seated(options.opponent or (), option="--opponent")
        return study(games, [*games.admit(references), *opponents])


def ablate(options: argparse.Namespace) -> Result:
    """What is lost when words are not heard as they were said."""
    from selfplay.study.measures.message_ablation import study

    return _of_one(options, study)


def influence(options: argparse.Namespace) -> Result:
    """How far words move what others do."""
    from selfplay.study.measures.influence import study

    return _of_one(options, study)


def reciprocity(options: argparse.Namespace) -> Result:
    """Cooperation after cooperation and after defection."""
    from selfplay.study.measures.reciprocity import study

    return _of_one(options, partial(study, cooperate=options.cooperate))


def passk(options: argparse.Namespace) -> Result:
    """pass@k before and after training."""
    from selfplay.study.measures.pass_at_k import study

    if options.samples < 1:
        raise ConfigError(f"--samples {options.samples}: at least 1 is needed")
    reference = Reference.parse(options.run)
    if reference.start:
        raise ConfigError(
            f"{reference}: passk compares with the policy before training, and this is it; name "
            f"{reference.run}, or {reference.run}@STEP"
        )
    with _games(options, reference.run) as games:
        trained, base = games.admit([reference, Reference(run=reference.run, start=True)])
        return study(games, trained, base, samples=options.samples, role=options.role)


def dynamics(options: argparse.Namespace) -> Result:
    """Cycles, and drift of difficulty and language."""
    from selfplay.study.measures.dynamics import recorded, study

    episodes = recorded(options.run)  # a run without any is refused before a model is loaded
    base = untrained(options.run)
    return study(options.run, episodes, base, metric=options.metric, seed=options.seed)


def hacking(options: argparse.Namespace) -> Result:
    """Whether the reward is earned the way it was meant."""
    from selfplay.study.measures.dynamics import recorded
    from selfplay.study.measures.reward_hacking import study

    references = _references(options)
    several = len({reference.run.resolve() for reference in references}) == len(references) > 1
    if len(references) == 1 and not references[0].start:
        references.append(Reference(run=references[0].run, start=True))
    with _games(options, references[0].run) as games:
        players = games.admit(references)
        until = 0 if references[0].start else references[0].step
        found = recorded(references[0].run, required=False, until=until)
        return study(games, players, found, independent=several)


def transfer(options: argparse.Namespace) -> Result:
    """What was learned in one game, played in another."""
    from selfplay.study.measures.transfer import study

    return study(
        _references(options),
        episodes=options.episodes,
        evaluation=options.evaluation,
        seed=options.seed,
    )


def exploit(options: argparse.Namespace) -> Result:
    """What a trained best response gains."""
    from selfplay.study.measures.approximate_exploitability import study

    if options.budget < 1:
        raise ConfigError(f"--budget {options.budget}: at least 1 is needed")
    return _of_one(options, partial(study, budget=options.budget))


def compare(options: argparse.Namespace) -> Result:
    """A measure of each run, over sets of runs."""
    from selfplay.study.measures.compare import measure_all, parse_sets, study

    measure = MEASURES[options.of]
    for name in MEASURES["compare"].options:
        given = getattr(options, name) != OPTIONS[name].get("default")
        if given and name not in (*measure.options, "only"):
            raise ConfigError(f"--{name}: {options.of} has no such option")
    one: Callable[[argparse.Namespace], Result] = globals()[options.of]

    def of(reference: Reference) -> Result:
        run = {"run": reference.run, "player": str(reference), "players": [str(reference)]}
        if measure.runs == "run" and str(reference) != str(reference.run):
            raise ConfigError(f"{reference}: {options.of} is of a whole run; drop the @")
        rest = {name: OPTIONS[name].get("default") for name in measure.options}
        given = {**rest, **vars(options), "run": run[measure.runs]}
        return one(argparse.Namespace(**given))

    return study(options.of, measure_all(parse_sets(options.run), of), only=options.only or ())


def _of_one(
    options: argparse.Namespace, study: Callable[[StudyMatches, StudyPlayer], Result]
) -> Result:
    reference = Reference.parse(options.run)
    with _games(options, reference.run) as games:
        (player,) = games.admit([reference])
        return study(games, player)


def _references(options: argparse.Namespace) -> list[Reference]:
    found = [Reference.parse(text) for text in options.run]
    places = [replace(each, run=each.run.resolve()) for each in found]
    for number, reference in enumerate(found):
        if places[number] in places[:number]:
            raise ConfigError(f"{reference}: named twice; name different players")
    return found


@contextmanager
def _games(options: argparse.Namespace, run: Path) -> Iterator[StudyMatches]:
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
