"""A trial game of a config: its arena and roles play at random, without a model."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose, isfinite
from random import Random
from typing import Any

from selfplay.arena import Arena
from selfplay.author_code import saved_state
from selfplay.credit.base import pay_by_agent
from selfplay.credit.replay import stages_of
from selfplay.curriculum.checked_calls import is_ready, metrics_of, tasks_of
from selfplay.curriculum.default_tasks import DefaultTasks
from selfplay.engines.scripted import Script, Scripted, ScriptedEngine
from selfplay.errors import SelfplayError, nearest, printable, with_place
from selfplay.experiment.odd_moves import faults_of_odd_moves
from selfplay.rng import derive
from selfplay.role import BrokenRole, Role
from selfplay.rollout.draws import observed
from selfplay.rollout.evaluation import Evaluation
from selfplay.rollout.policy_pool import PolicyPool
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.rollout.sampling_settings import SamplingSettings
from selfplay.rollout.setup import RolloutSetup
from selfplay.run.declarations import measured_by
from selfplay.run.formatting import number
from selfplay.run.report.html import visible
from selfplay.sampler.independent import require_tasks
from selfplay.types import Episode, Status, Task, Turn, role_of

PLAYER = "random"
"""Name of the random player, which has all seats."""
WORDS = "0"
"""Move of the player if the arena lists no legal moves."""
FORMS = (
    "{}",
    "<answer>{}</answer>",
    "<think></think><answer>{}</answer>",
    "<action_start>{}<action_end>",
)
"""Forms of an answer; the player uses the first form that the role parses as an action."""
MOST_TURNS = 200
"""Maximum number of turns of a game."""
MOST_SHOWN = 24
"""Maximum number of turns that are shown."""
WIDTH = 100
"""Maximum number of characters of a text that are shown."""
NOT_REPRODUCIBLE = "all random draws must come from the rng of setup, or later from self.rng"
"""Advice if a game is not the same when it is played again."""
NOT_REPRODUCIBLE_TASK = "all of its random draws must come from that rng"
"""Advice if a task is not the same when it is made again."""


@dataclass(frozen=True, kw_only=True)
class CheckedGame:
    """The result of one game, or the error that prevented it."""

    title: str
    """Config key of the arena, such as arena or evaluations.held_out."""
    shown: Sequence[str] = ()
    """Lines about observations, completions and rewards; the first part also names the policies."""
    faults: Sequence[str] = ()
    """One line per fault."""
    notes: Sequence[str] = ()
    """One line per metric that is probably misspelt."""


def games(config: Mapping[str, Any], *, seed: int) -> Iterator[CheckedGame]:
    """Play one game of the first training task, and one of the first task of each evaluation.

    Yield the result of each. A fault of the curriculum takes the place of the training game.

    Args:
        config: A config that `selfplay.experiment.experiment.check` has accepted.
        seed: Seed of the arena's randomness and of the random moves.
    Raises:
        ConfigError: If the arena, a role, a service or an evaluation cannot be built.
    """
    players = RolloutSetup(config)
    try:
        curriculum = players.build("curriculum")
        try:
            tasks = tasks_of(curriculum, 1)
            require_tasks(tasks, step=1)
            is_ready(curriculum)
            metrics_of(curriculum)
            saved_state(curriculum, "curriculum")
        except SelfplayError as error:
            yield CheckedGame(title="curriculum", shown=[_policies(players)], faults=[str(error)])
        else:
            if isinstance(curriculum, DefaultTasks) and tasks_of(curriculum, 1) != tasks:
                fault = f"default_task makes other tasks of an equal rng; {NOT_REPRODUCIBLE_TASK}"
                yield CheckedGame(title="arena", faults=[f"arena: {fault}"])
            game = _game("arena", players.arena, lambda: tasks[0], players, seed)
            yield replace(game, shown=[_policies(players), *game.shown])
        for name, each in players.evaluations.items():
            title = f"evaluations.{name}"
            yield _game(title, each.arena, lambda: each.tasks[0], players, seed, each)  # noqa: B023
    finally:
        players.close()


def _game(
    title: str,
    arena: Callable[[], Arena],
    first: Callable[[], Task],
    players: RolloutSetup,
    seed: int,
    evaluation: Evaluation | None = None,
) -> CheckedGame:
    """Play one game of an arena; an error of the arena or a role becomes a fault of the game.

    `evaluation` is the evaluation that the game belongs to; None for the training game.
    """
    try:
        task, roles = first(), players.roles
        scripts = _scripts(players)
        pool = PolicyPool(
            roles=roles,
            policy_of=lambda role: scripts.get(role, PLAYER),
            sampling=dict.fromkeys(roles, SamplingSettings(max_tokens=1_000_000)),
            rollout=players.rollout_settings.changed(max_turns=MOST_TURNS),
        )
        odd: dict[str, None] = {}
        pool.add(PLAYER, ScriptedEngine({PLAYER: _player(roles, odd)}))
        for name in dict.fromkeys(scripts.values()):
            pool.add(name, players.population.opponents[name])
        spec = EpisodeSpec(task=task, seed=derive(seed, "check", title))
        (episode,) = pool.rollout(arena).run([spec])
        faults = [*_faults_of_class(arena()), *_faults(episode), *odd]
        if not faults:
            faults = [*_faults_of_replay(arena, episode)]
        if not faults:
            stages = stages_of(episode)
            faults = [*faults_of_odd_moves(arena(), episode.task, episode.seed, stages)]
        notes = [*_unknown_chief(title, arena(), episode)]
        notes += [] if evaluation is None else _unmeasured(title, evaluation, episode)
    except SelfplayError as error:
        return CheckedGame(title=title, faults=[f"{title}: {error}"])
    except Exception as error:  # an author's arena, role or curriculum
        return CheckedGame(title=title, faults=[f"{title}: {with_place(error)}"])
    return CheckedGame(
        title=title,
        shown=list(_lines(title, episode)),
        faults=[f"{title}: {fault}" for fault in faults],
        notes=notes,
    )


def _policies(players: RolloutSetup) -> str:
    """Return a line with the policies and opponents, each with the roles that it plays."""
    population, playing = players.population, dict[str, list[str]]()
    for role in players.roles:
        playing.setdefault(population.policy_of(role), []).append(role)
    named = (
        f"{name} ({', '.join(roles)})" + " does not learn" * (name not in population.learning)
        for name, roles in playing.items()
    )
    return f"policies: {', '.join(named)}"


def _scripts(players: RolloutSetup) -> Mapping[str, str]:
    """Return the name of the script of each role that the population gives to one."""
    opponents = players.population.opponents
    given = players.population.roles.items()
    return {role: name for role, name in given if isinstance(opponents.get(name), Scripted)}


def _unmeasured(title: str, evaluation: Evaluation, episode: Episode) -> Iterator[str]:
    """Yield a line for each metric that the finished game lacks and the arena does not declare.

    This is no fault, because an arena may measure other things in other games. A declared metric
    gets no line: for example, refused proposals have no solve rate.
    """
    declared = measured_by(evaluation.arena())
    known = {*episode.metrics, *declared.metrics}
    for shown, measured in evaluation.metrics.items():
        if episode.status is not Status.FINISHED or measured in episode.metrics:
            continue
        if declared.of(f"{episode.task.type}/{measured}") is None:
            yield (
                f"{title}.metrics.{shown}: the game of the check has no metric {measured!r}; if no "
                f"game has it, it is not reported; {nearest(measured, known)}"
            )


def _unknown_chief(title: str, arena: Arena, episode: Episode) -> Iterator[str]:
    """Yield a line for each chief metric that the arena neither declares nor measured.

    A game of a mixture measures only what its own part measures.
    """
    declared = measured_by(arena)
    known = {*episode.metrics, *declared.metrics}
    for name in declared.chief:
        if declared.of(name) is None and name.rpartition("/")[2] not in known:
            yield (
                f"{title}: {type(arena).__name__}.chief has {name!r}, which is not in measures; "
                f"{nearest(name, known)}"
            )


def _player(roles: Mapping[str, Role], odd: dict[str, None]) -> Script:
    """Return a script that answers with a random legal move, in a form that the role parses.

    A line for each agent whose legal moves are no list or tuple of texts is added to `odd`.
    """

    def script(agent: str, observation: Any, rng: Random) -> str:
        given = observation.fields.get("legal")
        legal = given if isinstance(given, list | tuple) else ()
        wrong = next((repr(move) for move in legal if not isinstance(move, str)), "")
        if given is not None and legal is not given:
            wrong = repr(given) if isinstance(given, str) else f"a {type(given).__name__}"
        if wrong:
            odd[f"view({agent!r}) has {wrong} under 'legal', which needs a list of texts"] = None
        words = str(rng.choice(legal)) if legal else WORDS
        role = roles[role_of(agent)]
        said = [form.format(words) for form in FORMS]
        try:
            return next(
                (text for text in said if role.parse_completion(text)[0] is not None), words
            )
        except BrokenRole as error:
            raise BrokenRole(f"roles.{role_of(agent)}: {error}") from error

    return script


def _lines(title: str, episode: Episode) -> Iterator[str]:
    """Yield lines about the observations, completions and rewards of an episode."""
    turns = episode.turns
    yield f"{title}: task {episode.task.id}, {len(turns)} turns, {episode.status.value}"
    for turn in turns[:MOST_SHOWN]:
        yield f"  {turn.agent} ({turn.role}) sees   {_shown(_seen(turn))}"
        read = f"invalid: {turn.info.get('invalid')}" if turn.invalid else repr(turn.action)
        yield f"    says {_shown(turn.text)}   read as {_shown(read)}   paid {number(turn.reward)}"
    if len(turns) > MOST_SHOWN:
        yield f"  ... and {len(turns) - MOST_SHOWN} more turns"
    if turns:
        paid = pay_by_agent(episode)
        yield "  paid in all   " + ", ".join(f"{who} {number(got)}" for who, got in paid.items())
    if episode.metrics:
        shown = ", ".join(f"{name} {number(value)}" for name, value in episode.metrics.items())
        yield f"  metrics       {shown}"


def _faults_of_class(arena: Arena) -> Iterator[str]:
    """Yield a line for each fault of an arena's name and roles."""
    kind = type(arena).__name__
    if arena.name == Arena.name:
        yield f"{kind} has no name; write for example name = 'my_game_v0' in the class"
    for role in arena.roles:
        if not role.isidentifier():
            yield f"{kind}.roles: {role!r} is no name; use letters, digits and _, such as player"
    if not arena.possible_agents:
        yield f"{kind}.roles: no role has an agent; at least 1 is needed"


def _faults(episode: Episode) -> Iterator[str]:
    """Yield a line for each fault of a game."""
    if episode.status is Status.FAILED:
        yield episode.error
    elif not episode.turns:
        yield "no agent was asked for a move"
    elif episode.status is Status.TRUNCATED:
        yield f"the game had not ended after {MOST_TURNS} turns of random play; finish() ends it"
    for turn in episode.turns:
        if not isfinite(turn.reward):
            yield f"{turn.agent} was paid {turn.reward}, which is not a finite number"
    for name, value in episode.metrics.items():
        if not isfinite(value):
            yield f"the metric {name!r} is {value}, which is not a finite number"
    legal = [turn for turn in episode.turns if turn.text != WORDS]
    for role in sorted({turn.role for turn in legal}):
        mine = [turn for turn in legal if turn.role == role]
        if all(turn.action is None for turn in mine):
            yield (
                f"roles.{role}: none of {len(mine)} legal moves was read as an action "
                f"({mine[0].info.get('invalid')}); see its parse"
            )


def _faults_of_replay(arena: Callable[[], Arena], episode: Episode) -> Iterator[str]:
    """Play the moves of a game again, twice; yield a line if the game is not the same."""
    try:
        first, second = (_played_again(arena(), episode, looks=looks) for looks in (1, 2))
    except _CopyError as error:
        cause = error.__cause__ or error
        yield (
            f"the arena cannot be {error} in mid-game: {with_place(cause)}; its state is plain "
            "data: name attributes that reach outside in services"
        )
        return
    except SelfplayError:
        raise
    except Exception as error:  # the author's arena, which played the same moves before
        place = with_place(error)
        yield f"the same seed and moves cannot be played again: {place}; {NOT_REPRODUCIBLE}"
        return
    paid = pay_by_agent(episode)
    for agent, pay in first.paid.items():
        if not isclose(pay, paid.get(agent, 0.0), abs_tol=1e-9):
            yield (
                f"{agent} is paid {number(pay)} for the same seed and moves, and was paid "
                f"{number(paid.get(agent, 0.0))} before; {NOT_REPRODUCIBLE}"
            )
            return
    for agent in second.changing:
        yield (
            f"view({agent!r}) differs when it is called again; view may neither change the state "
            "nor draw at random"
        )
        return
    for agent, text, other in zip(first.agents, first.seen, second.seen, strict=True):
        if text != other:
            yield f"view({agent!r}) differs for the same seed and moves; {NOT_REPRODUCIBLE}"
            return


@dataclass(frozen=True, kw_only=True)
class _Replayed:
    """A game that was played again, its second half in a copy of the arena."""

    agents: Sequence[str]
    """Agents that moved, in order."""
    seen: Sequence[str]
    """Observation before each move, as text."""
    changing: Sequence[str]
    """Agents whose observation differed when it was asked for again."""
    paid: Mapping[str, float]
    """All pay of each agent."""


class _CopyError(Exception):
    """Raised if an arena cannot be "copied" or "pickled"; the cause has the reason."""


def _played_again(arena: Arena, episode: Episode, *, looks: int) -> _Replayed:
    """Play the moves of an episode in an arena, and from the middle of the game on in a copy.

    `looks` is the number of times that each observation is asked for.
    """
    stages = stages_of(episode)
    arena.begin(episode.task, episode.seed)
    agents, seen, changing = list[str](), list[str](), list[str]()
    for played, moves in enumerate(stages):
        if played == len(stages) // 2:  # once: a copy of a wrapped game plays all its moves again
            try:
                arena = arena.fork()
            except Exception as error:
                raise _CopyError("copied") from error
            try:
                pickle.dumps(arena)
            except Exception as error:
                raise _CopyError("pickled") from error
        for agent in moves:
            looked = [observed(arena, agent) for _ in range(looks)]
            agents.append(agent)
            seen.append(looked[0])
            if len(set(looked)) > 1:
                changing.append(agent)
        arena.play_stage(moves)
    return _Replayed(agents=agents, seen=seen, changing=changing, paid=dict(arena.paid))


def _seen(turn: Turn) -> str:
    content = turn.messages[-1]["content"] if turn.messages else ""
    return content if isinstance(content, str) else printable(str(content))


def _shown(text: str) -> str:
    """Return a text in one line; a long text is cut to its end, where the question usually is."""
    flat = " ".join(visible(text).split())
    return flat if len(flat) <= WIDTH else f"...{flat[3 - WIDTH :]}"
