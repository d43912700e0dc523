"""A person takes a seat: against the policies of a run, or against a script."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from selfplay import config as configs
from selfplay.arena import Arena
from selfplay.build import TARGET, locate, signature
from selfplay.engines.person import Ask, Person
from selfplay.engines.scripted import Scripted
from selfplay.errors import ConfigError, RunError, nearest
from selfplay.pages import visible
from selfplay.rollout import Job, Rollout
from selfplay.runs import record_line, reporting_disk, write_atomic
from selfplay.seating import Seating
from selfplay.seeds import derive
from selfplay.types import Episode, Group, Message
from selfplay.world import World

YOU = "you"
"""Name of the person among the policies."""
OTHERS = "others"
"""Name of the script that plays the other seats of an arena without a run."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Where the person sits down."""

    arena: Callable[[], Arena]
    """Makes the arena."""
    rollout: Rollout
    """Plays it, with the person among its policies."""
    folder: Path
    """Where games are saved."""


def play(
    target: str, *, agent: str, ask: Ask, script: str, games: int, seed: int
) -> Iterator[tuple[Episode, Path]]:
    """Games of a person, each with the file it was saved in.

    Args:
        target: A run folder, whose newest policies play the rest, or an arena of `selfplay list`.
        agent: The person's seat.
        ask: Shows and asks.
        script: Who plays the rest where `target` is an arena: a dotted name.
        games: How many.
        seed: Of the arena's chance and of the others' sampling.
    Raises:
        ConfigError, RunError: Where there is no such run, arena or seat.
    """
    folder = Path(target)
    opened = _run(folder, ask) if folder.is_dir() else _arena(target, ask, script)
    with opened as table:
        known = table.arena().possible_agents
        if agent not in known:
            raise ConfigError(f"--as {agent}: no such seat; {nearest(agent, known)}")
        for number in range(games):
            chance = derive(seed, "play", number)
            task = table.arena().default_task(Random(chance))
            (episode,) = table.rollout.play([Job(task=task, seed=chance, seating={agent: YOU})])
            yield episode, _save(table.folder, episode, number)


@contextmanager
def _run(folder: Path, ask: Ask) -> Iterator[Table]:
    from selfplay import checkpoint
    from selfplay.experiment import Experiment
    from selfplay.runs import Run

    run = Run.open(folder)
    place, _ = checkpoint.latest(folder / "checkpoints")
    if place is None:
        raise RunError(f"run {folder} has no checkpoint yet; there is nobody to play against")
    experiment = Experiment.resume(run.config(), place)
    try:
        experiment.seating.add(YOU, Person(ask))
        arena = experiment.rollout.arena
        yield Table(arena=arena, rollout=experiment.rollout, folder=folder / "games")
    finally:
        experiment.close()


@contextmanager
def _arena(name: str, ask: Ask, script: str) -> Iterator[Table]:
    world = World(_config(name))
    try:
        seating = Seating(
            roles=world.roles,
            policy_of=lambda role: OTHERS,
            sampling={"default": {}},
            rollout={},
        )
        try:
            seating.add(OTHERS, Scripted(script=script))
        except ValueError as error:
            raise ConfigError(f"--against: {error}") from error
        seating.add(YOU, Person(ask))
        rollout = seating.rollout(world.arena)
        yield Table(arena=world.arena, rollout=rollout, folder=Path("games"))
    finally:
        world.close()


def _config(name: str) -> Mapping[str, Any]:
    """The config of an arena: the shipped one with whatever is named like it."""
    known = configs.choices("arena")
    if name not in known:
        raise ConfigError(f"no run folder and no arena {name!r}; {nearest(name, known)}")
    roles = name if name in configs.choices("roles") else "player"
    for services in (name, "none", "executor"):
        if services in configs.choices("services"):
            config = configs.load([f"arena={name}", f"roles={roles}", f"services={services}"])
            needed = signature(locate(config["arena"][TARGET], "arena")).needed
            given = (*config["services"], *config["arena"])
            if all(each in given for each in needed):
                break
    return config


def _save(folder: Path, episode: Episode, number: int) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = folder / f"{stamp}-{number + 1}.jsonl"
    group = Group(id=f"play.{number}", episodes=(episode,))
    with reporting_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(record_line(group, 0, {})) + "\n")
    return path


def at_terminal(agent: str, messages: Sequence[Message]) -> str:
    """Print what is new since the person's last words and read a line; raises EOFError at the end.

    What other agents wrote is shown with its control characters made visible: a terminal obeys
    them.
    """
    said = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for message in messages[said[-1] + 1 if said else 0 :]:
        content = message["content"]
        words = content if isinstance(content, str) else "\n".join(map(str, content))
        print(f"\n{visible(words)}")
    return input(f"{agent}> ").replace("\\n", "\n")
