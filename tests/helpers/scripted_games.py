"""Games of scripted players for the tests of studies: their truths are known exactly."""

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
    """Games in which each script can take any seat; the first has the roles' own seats."""
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
    """A player that takes every role with one script."""
    return StudyPlayer(label=name, policies=dict.fromkeys(arena().roles, policy or name))


def levers(pay: Sequence[float]) -> Callable[[], Matrix]:
    """Both must pull the same lever, and are paid what it pays."""
    names = [f"lever{number}" for number in range(len(pay))]
    table = [[[p, p] if i == j else [0, 0] for j in range(len(pay))] for i, p in enumerate(pay)]
    return lambda: raw_env(actions=names, payoffs=table)


STATES = ("a", "b", "c", "d")


def lewis(states: Sequence[str] = STATES, **settings: Any) -> Callable[[], Matrix]:
    """A signalling game: one player knows the state and speaks, the other must act on it.

    The speaker's own move changes nothing. Both are paid 1 where the listener names the state.
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
    """A task for each state."""
    return [Task(id=f"state-{state}", payload={"state": state}) for state in states]


def code(
    meaning: Mapping[str, str],
    *,
    otherwise: str,
    say: Callable[[Observation, Any], str] | None = None,
) -> Script:
    """Speaks its code (state to word), and acts on what it hears by the same code.

    `otherwise` is what it does on hearing any other word. `say` speaks in place of the code.
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
