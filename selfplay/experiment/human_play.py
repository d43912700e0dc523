"""A person takes a seat: against the policies of a run, or against a script."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from selfplay.arena import Arena
from selfplay.config import compose
from selfplay.config.instantiate import TARGET, import_target, signature
from selfplay.engines.human import Ask, HumanEngine, news
from selfplay.engines.scripted import Scripted
from selfplay.errors import ConfigError, RunError, nearest
from selfplay.rng import derive
from selfplay.rollout.policy_pool import PolicyPool
from selfplay.rollout.rollout import EpisodeSpec, Rollout
from selfplay.rollout.setup import Components
from selfplay.run.directory import record_line, reporting_disk, write_atomic
from selfplay.run.report.html import visible
from selfplay.types import Episode, Group, Message, Task

YOU = "you"
"""Name of the person among the policies."""
OTHERS = "others"
"""Name of the script that plays the other seats of an arena without a run."""
CHANCE = "arenas.games.opponents.random_legal"
"""The script where none is named."""
DRAWS = 1000
"""Tasks that are drawn to find one in which a seat takes part."""


@dataclass(frozen=True, kw_only=True)
class PlaySetup:
    """Where the person sits down."""

    arena: Callable[[], Arena]
    """Makes the arena."""
    rollout: Rollout
    """Plays it, with the person among its policies."""
    folder: Path
    """Where games are saved."""

    def seats(self) -> list[str]:
        """The agents that a person can be."""
        return list(self.arena().possible_agents)

    def check(self, agent: str) -> None:
        """Raise ConfigError for a seat that there is not."""
        known = self.seats()
        if agent not in known:
            raise ConfigError(f"--as {agent}: no such seat; {nearest(agent, known)}")

    def game(self, agent: str, *, seed: int, number: int) -> Episode:
        """A game with the person in the seat of `agent`, asked whenever it is its move."""
        chance = derive(seed, "play", number)
        job = EpisodeSpec(task=self._task(agent, chance), seed=chance, policy_map={agent: YOU})
        (episode,) = self.rollout.run([job])
        return episode

    def save(self, episode: Episode) -> Path:
        """Write a game down as a record of one episode; the file."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        group = Group(id=f"play.{stamp}", episodes=(episode,))
        with reporting_disk(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            names = (self.folder / f"{stamp}-{number}.jsonl" for number in count(1))
            path = next(name for name in names if not name.exists())
            write_atomic(path, json.dumps(record_line(group, 0, {})) + "\n")
        return path

    def _task(self, agent: str, chance: int) -> Task:
        """A task in which the seat takes part: those of a mixture are for some of its agents."""
        rng, arena = Random(chance), self.arena()
        for _ in range(DRAWS):
            task = arena.default_task(rng)
            try:
                arena.begin(task, chance)
            except Exception:  # the game itself fails of it, and its record says how
                return task
            if agent in arena.agents:
                return task
        raise ConfigError(f"--as {agent}: takes no part in any of {DRAWS} tasks")


@contextmanager
def table(
    target: str,
    *,
    ask: Ask,
    script: str,
    overrides: Sequence[str] = (),
    search: Sequence[str] = (),
) -> Iterator[PlaySetup]:
    """A table that is open as long as the context.

    Args:
        target: A run folder, whose newest policies play the rest, or RUN@STEP for those of another
            checkpoint that it kept, or an arena of `selfplay list`.
        ask: Shows and asks.
        script: Who plays the rest where `target` is an arena: a dotted name, or "" for chance.
        overrides: Changes to the run's or the arena's config, such as arena.rounds=2.
        search: More folders of config groups, if `target` is an arena.
    Raises:
        ConfigError, RunError: Where there is no such run, arena or script.
    """
    name, at, step = target.rpartition("@")
    kept = bool(at) and Path(name).is_dir() and not Path(target).exists()
    if kept and not step.isdecimal():
        raise ConfigError(f"{target}: {step!r} is no step; write RUN, or RUN@STEP")
    folder = Path(name if kept else target)
    if not folder.is_dir():
        opened = _arena(_config(target, overrides, search), ask, script)
    elif script:
        raise ConfigError(
            f"--against {script}: in games of {folder} its own policies play the rest"
        )
    else:
        if search:
            raise ConfigError(
                f"--config-dir {search[0]}: {folder} has its own config; change it with key=value"
            )
        opened = _run(folder, ask, int(step) if kept else None, overrides)
    with opened as found:
        yield found


def play(
    target: str,
    *,
    agent: str,
    ask: Ask,
    script: str,
    games: int,
    seed: int,
    overrides: Sequence[str] = (),
    search: Sequence[str] = (),
) -> Iterator[tuple[Episode, Path]]:
    """Games of a person, each with the file it was saved in.

    Args:
        target: As in `table`, and so are `ask`, `script`, `overrides` and `search`.
        agent: The person's seat.
        games: How many.
        seed: Of the arena's chance and of the others' sampling.
    Raises:
        ConfigError, RunError: Where there is no such run, arena or seat.
    """
    if games < 1:
        raise ConfigError(f"--games {games}: at least 1 is needed")
    with table(target, ask=ask, script=script, overrides=overrides, search=search) as found:
        found.check(agent)
        for number in range(games):
            episode = found.game(agent, seed=seed, number=number)
            yield episode, found.save(episode)


@contextmanager
def _run(folder: Path, ask: Ask, step: int | None, overrides: Sequence[str]) -> Iterator[PlaySetup]:
    from selfplay.experiment.experiment import Experiment
    from selfplay.learner import checkpoint
    from selfplay.run.directory import Run

    run = Run.open(folder)
    place, _ = checkpoint.latest(folder / "checkpoints")
    if place is None:
        raise RunError(f"run {folder} has no checkpoint yet; there is nobody to play against")
    if step is not None:
        place = checkpoint.at(place.parent, step)
    config = compose.load_changed(folder, overrides) if overrides else run.config()
    asked = {override.partition("=")[0].partition(".")[0] for override in overrides}
    elsewhere = {key: config[key] for key in compose.LOCAL_DEFAULTS if key in asked}
    config = {**compose.with_local_runtime(config), **elsewhere}
    experiment = Experiment.resume(config, place, learning=False)
    try:
        players = experiment.players
        players.policy_pool.add(YOU, HumanEngine(ask))
        yield PlaySetup(arena=players.world.arena, rollout=players.rollout, folder=folder / "games")
    finally:
        experiment.close()


@contextmanager
def _arena(config: Mapping[str, Any], ask: Ask, script: str) -> Iterator[PlaySetup]:
    world = Components(config)
    try:
        seating = PolicyPool(
            roles=world.roles,
            policy_of=lambda role: OTHERS,
            sampling={"default": {}},
            rollout={},
        )
        try:
            seating.add(OTHERS, Scripted(script=script or CHANCE))
        except ValueError as error:
            raise ConfigError(f"--against: {error}") from error
        seating.add(YOU, HumanEngine(ask))
        rollout = seating.rollout(world.arena)
        yield PlaySetup(arena=world.arena, rollout=rollout, folder=Path("games"))
    finally:
        world.close()


def _config(name: str, overrides: Sequence[str], search: Sequence[str]) -> dict[str, Any]:
    """The config of an arena: the shipped one with whatever is named like it."""
    known = compose.choices("arena", search)
    if name not in known:
        raise ConfigError(f"no run folder and no arena {name!r}; {nearest(name, known)}")
    chosen = {override.partition("=")[0] for override in overrides}
    roles = name if name in compose.choices("roles", search) else "player"
    given = [f"arena={name}", *overrides]
    given += [] if "roles" in chosen else [f"roles={roles}"]
    if "services" in chosen:
        return compose.load(given, search=search)
    for services in (name, "none", "executor"):
        if services in compose.choices("services", search):
            config = compose.load([*given, f"services={services}"], search=search)
            needed = signature(import_target(config["arena"][TARGET], "arena")).needed
            provided = (*config["services"], *config["arena"])
            if all(each in provided for each in needed):
                break
    return config


def at_terminal(agent: str, messages: Sequence[Message]) -> str:
    """Print what is new since the person's last words and read a line; raises EOFError at the end.

    What other agents wrote is shown with its control characters made visible: a terminal obeys
    them.
    """
    for message in news(messages):
        content = message["content"]
        words = content if isinstance(content, str) else "\n".join(map(str, content))
        print(f"\n{visible(words)}")
    return input(f"{agent}> ").replace("\\n", "\n")
