"""From the options of the command line to the studies: a function for each measure."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from selfplay.errors import ConfigError
from selfplay.study.games import Games, games_of
from selfplay.study.measures import MEASURES, OPTIONS
from selfplay.study.players import Player, Reference, untrained
from selfplay.study.result import Result


def exploitability(options: argparse.Namespace) -> Result:
    """What best responses gain, exactly."""
    from selfplay.study.exploitability import result, study

    if options.all and options.step is not None:
        raise ConfigError("--all measures every checkpoint and --step one of them; drop either")
    found = study(options.run, step=options.step, every=options.all, policy=options.policy)
    return result(options.run, found)


def counterfactual(options: argparse.Namespace) -> Result:
    """Whether what helped is what was learned."""
    from selfplay.study.counterfactual import study

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
    from selfplay.study.roleswap import study

    references = _references(options)
    if len(references) == 1:
        references.append(Reference(run=references[0].run, start=True))
    with _games(options, references[0].run) as games:
        return study(games, games.admit(references))


def crossplay(options: argparse.Namespace) -> Result:
    """Every player with every other."""
    from selfplay.study.crossplay import study

    references = _references(options)
    runs = {reference.run.resolve() for reference in references}
    with _games(options, references[0].run) as games:
        players = games.admit(references)
        return study(games, players, independent=len(runs) == len(references))


def payoffs(options: argparse.Namespace) -> Result:
    """Who beats whom."""
    from selfplay.study.payoffs import study

    references = _references(options)
    with _games(options, references[0].run) as games:
        opponents = games.seated(options.opponent or (), option="--opponent")
        return study(games, [*games.admit(references), *opponents])


def ablate(options: argparse.Namespace) -> Result:
    """What is lost when words are not heard as they were said."""
    from selfplay.study.ablate import study

    return _of_one(options, study)


def influence(options: argparse.Namespace) -> Result:
    """How far words move what others do."""
    from selfplay.study.influence import study

    return _of_one(options, study)


def reciprocity(options: argparse.Namespace) -> Result:
    """Cooperation after cooperation and after defection."""
    from selfplay.study.reciprocity import study

    return _of_one(options, partial(study, cooperate=options.cooperate))


def passk(options: argparse.Namespace) -> Result:
    """pass@k before and after training."""
    from selfplay.study.passk import study

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
    from selfplay.study.dynamics import recorded, study

    episodes = recorded(options.run)  # a run without any is refused before a model is loaded
    base = untrained(options.run)
    return study(options.run, episodes, base, metric=options.metric, seed=options.seed)


def hacking(options: argparse.Namespace) -> Result:
    """Whether the reward is earned the way it was meant."""
    from selfplay.study.dynamics import recorded
    from selfplay.study.hacking import study

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
    from selfplay.study.transfer import study

    return study(
        _references(options),
        episodes=options.episodes,
        evaluation=options.evaluation,
        seed=options.seed,
    )


def exploit(options: argparse.Namespace) -> Result:
    """What a trained best response gains."""
    from selfplay.study.exploit import study

    if options.budget < 1:
        raise ConfigError(f"--budget {options.budget}: at least 1 is needed")
    return _of_one(options, partial(study, budget=options.budget))


def compare(options: argparse.Namespace) -> Result:
    """A measure of each run, over sets of runs."""
    from selfplay.study.compare import measure_all, study
    from selfplay.study.sets import parse_sets

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


def _of_one(options: argparse.Namespace, study: Callable[[Games, Player], Result]) -> Result:
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
def _games(options: argparse.Namespace, run: Path) -> Iterator[Games]:
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
