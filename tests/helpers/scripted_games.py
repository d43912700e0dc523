"""Games of scripted players with exactly known values, for the tests of studies."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arenas.games.matrix import Matrix, raw_env
from selfplay.arena import Arena
from selfplay.engines.scripted import Script, ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec
from selfplay.study.matches import StudyMatches
from selfplay.study.players import StudyPlayer
from selfplay.types import Observation, Task


def games(
    arena: Callable[[], Arena], scripts: Mapping[str, Script], **settings: Any
) -> StudyMatches:
    """Return games in which each script can take any seat. The first script has all seats first."""
    engine, renderer = ScriptedEngine(scripts), ByteRenderer()
    first = next(iter(scripts))
    seats = {
        role: AgentSpec(role=Role(), policy=first, renderer=renderer) for role in arena().roles
    }
    return StudyMatches(
        arena=arena,
        agent_specs=seats,
        engines=dict.fromkeys(scripts, engine),
        renderers=dict.fromkeys(scripts, renderer),
        **{"episodes": 24, **settings},
    )


def player(name: str, arena: Callable[[], Arena], policy: str | None = None) -> StudyPlayer:
    """Return a player that takes every role with one script."""
    return StudyPlayer(label=name, policies=dict.fromkeys(arena().roles, policy or name))


def levers(pay: Sequence[float]) -> Callable[[], Matrix]:
    """Return a game whose two players are paid the pay of a lever if both pull the same one."""
    names = [f"lever{number}" for number in range(len(pay))]
    table = [[[p, p] if i == j else [0, 0] for j in range(len(pay))] for i, p in enumerate(pay)]
    return lambda: raw_env(actions=names, payoffs=table)


STATES = ("a", "b", "c", "d")


def lewis(states: Sequence[str] = STATES, **settings: Any) -> Callable[[], Matrix]:
    """Return a signalling game: a speaker knows the state and speaks, and a listener acts.

    The speaker's own move changes nothing. Both are paid 1 if the listener names the state.
    """
    table = {state: [[[float(act == state)] * 2 for act in states]] for state in states}
    given: dict[str, Any] = {
        "actions": ["wait"],
        "columns": list(states),
        "payoffs": table,
        "players": ("speaker", "listener"),
        "speakers": [0],
        "informed": [0],
    }
    return lambda: raw_env(**{**given, **settings})


def lewis_tasks(states: Sequence[str] = STATES) -> list[Task]:
    """Return a task for each state."""
    return [Task(id=f"state-{state}", payload={"state": state}) for state in states]


def code(
    meaning: Mapping[str, str],
    *,
    otherwise: str,
    say: Callable[[Observation, Any], str] | None = None,
) -> Script:
    """Return a script that speaks a code (state to word) and acts on words by the same code.

    `otherwise` is its move after any other word. `say`, if given, chooses the words instead.
    """
    heard = {word: state for state, word in meaning.items()}

    def script(agent: str, observation: Observation, rng: Any) -> str:
        fields = observation.fields
        if fields["phase"] == "message":
            return say(observation, rng) if say else meaning[fields["state"]]
        if agent.startswith("speaker"):
            return "wait"
        return heard.get(fields["heard"], otherwise)

    return script
