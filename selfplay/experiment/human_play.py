"""Games of a person against the policies of a run, or against a script."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from selfplay.arena import Arena
from selfplay.author_code import default_task_of
from selfplay.config import compose, plain_data
from selfplay.config.instantiate import TARGET, import_target, signature
from selfplay.engines.human import Ask, HumanEngine, HumanQuestion, Refusal, news
from selfplay.engines.scripted import Scripted
from selfplay.errors import ConfigError, nearest
from selfplay.rng import derive
from selfplay.role import Role
from selfplay.rollout.policy_pool import PolicyPool
from selfplay.rollout.rollout import EpisodeSpec, Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.rollout.sampling_settings import SamplingSettings
from selfplay.rollout.setup import Components
from selfplay.run.directory import Run, record, reporting_disk, write_atomic
from selfplay.run.formatting import number
from selfplay.run.json_lines import JsonLines
from selfplay.run.report.html import visible
from selfplay.run.run_folder import RUNS, is_run
from selfplay.types import Episode, Group, Request, Status, Task, role_of

YOU = "you"
"""Policy name of the person."""
OTHERS = "others"
"""Policy name of the script in the other seats, if there is no run."""
RANDOM_SCRIPT = "arenas.games.opponents.random_legal"
"""The default script."""
LONGEST_QUOTED = 80
"""Largest number of characters of a text that an answer quotes."""
DRAWS = 1000
"""Maximum number of tasks that are drawn to find one for the person's agent."""


@dataclass(frozen=True, kw_only=True)
class PlaySetup:
    """An arena and a rollout that are ready for games of a person."""

    arena: Callable[[], Arena]
    """Function that makes a new arena."""
    rollout: Rollout
    """Rollout that has the person among its policies."""
    folder: Path
    """Folder of saved games."""

    def rules(self) -> str:
        """Return the rules of the game."""
        return self.arena().explain()

    def seats(self) -> list[str]:
        """Return the agents that a person can play."""
        return list(self.arena().possible_agents)

    def check(self, agent: str) -> None:
        """Raise ConfigError if there is no such agent, or if none is named."""
        known = self.seats()
        if not agent:
            raise ConfigError(
                f"play needs --as AGENT, your agent ({', '.join(known)}); with --page you choose "
                "it there"
            )
        if agent not in known:
            raise ConfigError(f"--as {agent}: no such seat; {nearest(agent, known)}")

    def game(self, agent: str, *, seed: int, number: int) -> Episode:
        """Play a game in which the person is asked for the moves of `agent`.

        `seed` and `number`, the index of the game, determine the task, the arena's random draws and
        the samples.
        """
        chance = derive(seed, "play", number)
        spec = EpisodeSpec(task=self._task(agent, chance), seed=chance, policy_map={agent: YOU})
        (episode,) = self.rollout.run([spec])
        return episode

    def save(self, episode: Episode) -> Path:
        """Write the record of a game to a new file and return its path."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        group = Group(id=f"play.{stamp}", episodes=(episode,))
        with reporting_disk(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            names = (self.folder / f"{stamp}-{number}.jsonl" for number in count(1))
            path = next(name for name in names if not name.exists())
            write_atomic(path, JsonLines().line(record(group, 0, {})) + "\n")
        return path

    def _task(self, agent: str, chance: int) -> Task:
        """Return a task that has this agent; a task of a mixture may have only some agents."""
        rng, arena = Random(chance), self.arena()
        for _ in range(DRAWS):
            task = default_task_of(arena, rng)
            try:
                arena.begin(task, chance)
            except Exception:  # the game will fail too, and its record has the error
                return task
            if agent in (*arena.agents, *arena.to_come()):
                return task
        raise ConfigError(f"--as {agent}: takes part in none of {DRAWS} tasks")


@contextmanager
def table(
    target: str,
    *,
    ask: Ask,
    script: str,
    overrides: Sequence[str] = (),
    search: Sequence[str] = (),
) -> Iterator[PlaySetup]:
    """Prepare games of a person; the setup is closed when the context ends.

    Args:
        target: A run folder, whose newest policies play the other agents; RUN@STEP for another
            checkpoint of the run; or the name of an arena from `selfplay list`.
        ask: Shows the observation and returns the person's move.
        script: Dotted name of the script for the other agents if `target` is an arena; "" for
            random legal moves.
        overrides: Changes to the config of the run or the arena, such as arena.rounds=2.
        search: More folders of config groups, if `target` is an arena.
    Raises:
        ConfigError, RunError: If there is no such run, arena or script.
    """
    name, at, step = target.rpartition("@")
    kept = bool(at) and Path(name).is_dir() and not Path(target).exists()
    if kept and not step.isdecimal():
        raise ConfigError(f"{target}: {step!r} is not a step; write RUN, or RUN@STEP")
    folder = Path(name if kept else target)
    if not folder.is_dir():
        opened = _arena(_config(target, overrides, search), ask, script)
    elif script:
        raise ConfigError(f"--against {script}: games of {folder} use the policies of the run")
    else:
        if search:
            raise ConfigError(
                f"--config-dir {search[0]}: {folder} has its own config; change it with key=value"
            )
        opened = _run(folder, ask, int(step) if kept else None, overrides)
    with opened as setup:
        yield setup


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
    begin: Callable[[str], object] = lambda rules: None,
) -> Iterator[tuple[Episode, Path]]:
    """Play games of a person; yield each game with the file that it was saved in.

    `target`, `ask`, `script`, `overrides` and `search` are the arguments of `table`.

    Args:
        agent: The person's agent.
        games: Number of games.
        seed: Seed of the arena's chance and of the policies' sampling.
        begin: Shows the rules before the first game.
    Raises:
        ConfigError, RunError: If there is no such run, arena or agent.
    """
    if games < 1:
        raise ConfigError(f"--games {games}: at least 1 is needed")
    with table(target, ask=ask, script=script, overrides=overrides, search=search) as setup:
        setup.check(agent)
        begin(setup.rules())
        for played in range(games):
            episode = setup.game(agent, seed=seed, number=played)
            yield episode, setup.save(episode)


@contextmanager
def _run(folder: Path, ask: Ask, step: int | None, overrides: Sequence[str]) -> Iterator[PlaySetup]:
    from selfplay.experiment.experiment import Experiment
    from selfplay.learner import checkpoint

    run = Run.open(folder)
    place = checkpoint.choose(folder, step=step)
    config = compose.load_changed(folder, overrides) if overrides else run.config()
    asked = {override.partition("=")[0].partition(".")[0] for override in overrides}
    elsewhere = {key: config[key] for key in plain_data.LOCAL_DEFAULTS if key in asked}
    config = {**compose.with_local_runtime(config), **elsewhere}
    experiment = Experiment(config, unplayed=("evaluations",)).load(place, learning=False)
    try:
        players = experiment.players
        roles = {name: agent_spec.role for name, agent_spec in players.rollout.agent_specs.items()}
        players.policy_pool.add(YOU, HumanEngine(ask, refusal_of(players.arena(), roles)))
        yield PlaySetup(arena=players.arena, rollout=players.rollout, folder=folder / "games")
    finally:
        experiment.close()


@contextmanager
def _arena(config: Mapping[str, Any], ask: Ask, script: str) -> Iterator[PlaySetup]:
    components = Components(config)
    try:
        pool = PolicyPool(
            roles=components.roles,
            policy_of=lambda role: OTHERS,
            sampling=dict.fromkeys(components.roles, SamplingSettings()),
            rollout=RolloutSettings(),
        )
        try:
            pool.add(OTHERS, Scripted(script=script or RANDOM_SCRIPT))
        except ValueError as error:
            raise ConfigError(f"--against: {error}") from error
        pool.add(YOU, HumanEngine(ask, refusal_of(components.arena(), components.roles)))
        rollout = pool.rollout(components.arena)
        yield PlaySetup(arena=components.arena, rollout=rollout, folder=Path("games"))
    finally:
        components.close()


def _config(name: str, overrides: Sequence[str], search: Sequence[str]) -> dict[str, Any]:
    """Return the config of an arena, with the roles and services of the same name if they exist."""
    known = [each for each in compose.choices("arena", search) if each != "none"]
    if name not in known:
        default = RUNS / name
        hint = f"did you mean {default}?" if is_run(default) else nearest(name, known)
        raise ConfigError(f"no run folder and no arena {name!r}; {hint}")
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


def refusal_of(arena: Arena, roles: Mapping[str, Role]) -> Refusal:
    """Return the check of a person's text: it must parse, and be a legal move of the arena.

    If an observation lists no legal moves, any text is accepted, and the arena interprets it.
    """

    def refusal(request: Request, text: str) -> str:
        if not request.observation.fields.get("legal"):
            return ""
        action, info = roles[role_of(request.agent)].parse_completion(text)
        if action is None:
            return f"{shorten(text)} is no answer ({info.get('invalid', 'it does not parse')})"
        if not arena.is_legal(request.observation, action):
            return f"{shorten(action)} is not a legal move"
        return ""

    return refusal


def shorten(text: str) -> str:
    """Return a text in quotes; a text longer than `LONGEST_QUOTED` is cut."""
    return repr(text if len(text) <= LONGEST_QUOTED else f"{text[:LONGEST_QUOTED]}...")


def ending(episode: Episode) -> str:
    """Return the reason for the end of a game in a few short lines.

    A game that ended by its rules has its last moves and the arena's metrics instead.
    """
    if episode.status is Status.FAILED:
        return f"The arena failed: {episode.error}"
    if episode.status is Status.TRUNCATED:
        return f"The game was cut off: {episode.error or 'the limit of turns was reached'}."
    last = [turn for turn in episode.turns if turn.stage == episode.turns[-1].stage]
    lines = ["The game ended with:"]
    for turn in last:
        move = "no valid move" if turn.action is None else shorten(turn.action)
        why = turn.info.get("verdict") or turn.info.get("invalid")
        lines.append(f"{turn.agent}: {move}{f' ({why})' if why else ''}")
    yours = [a for a, policy in episode.policy_map.items() if policy == YOU]
    lines += [f"{a} was not asked in this game." for a in yours if a not in episode.agents()]
    found = ", ".join(f"{name} {number(value)}" for name, value in episode.metrics.items())
    return "\n".join([*lines, *([found] if found else [])])


def at_terminal(question: HumanQuestion) -> str:
    """Print the messages since the person's last move and the legal moves, and read a line.

    Control characters in the messages are made visible, because a terminal would obey them. The two
    characters `\\n` in the person's line become a line break.

    Raises:
        EOFError: At the end of the input.
    """
    if question.refused:
        print(f"\n{visible(question.refused)}; enter another move")
    else:
        for message in news(question.messages):
            content = message["content"]
            words = content if isinstance(content, str) else "\n".join(map(str, content))
            print(f"\n{visible(words)}")
    if question.legal:
        print(f"legal moves: {visible(', '.join(question.legal))}")
    return input(f"{question.agent}> ").replace("\\n", "\n")
