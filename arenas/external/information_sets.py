"""Information sets of a small OpenSpiel game, from a walk over its whole tree.

`selfplay study exploitability` solves games whose arenas list them. The observation of a set is the
one that the adapter `arenas.external.pettingzoo` shows to the agent there.
"""

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any

from selfplay.arena import Arena
from selfplay.errors import ConfigError
from selfplay.types import InformationSet, Observation, Task

MOST_STATES = 50_000
"""Largest number of states of a game's tree, including chance nodes and final states."""


def information_sets(arena: Arena, env: Any) -> list[InformationSet]:
    """List every information set of an arena's OpenSpiel game, with OpenSpiel's names.

    Args:
        arena: Adapter of the game; it is copied and does not change.
        env: Its `arenas.external.openspiel.OpenSpielEnv`.

    Returns an empty list for a game that cannot be listed: one with more than `MOST_STATES` states,
    with simultaneous moves, or with chance that OpenSpiel does not enumerate. Raises ConfigError if
    an agent has two observations at one information set, because a policy then defines no strategy.
    """
    game, kind = env.game, env.game.get_type()
    has_keys = kind.provides_information_state_string
    if not has_keys or kind.dynamics != kind.Dynamics.SEQUENTIAL:
        return []
    if kind.chance_mode == kind.ChanceMode.SAMPLED_STOCHASTIC:
        return []
    states = list(islice(_states(game.new_initial_state()), MOST_STATES + 1))
    if len(states) > MOST_STATES:
        return []
    twin: Any = copy.deepcopy(arena)
    twin.begin(Task(id="information sets"), 0)
    found: dict[str, InformationSet] = {}
    for state in states:
        if state.is_chance_node() or state.is_terminal():
            continue
        player = state.current_player()
        # Agents are grouped by role, so their order need not be that of the game's players.
        agent, key = twin._ours[env.possible_agents[player]], state.information_state_string(player)
        twin.wrapped.unwrapped.stand(state)
        seen: Observation = twin.view(agent)
        # The adapter lists legal moves in the order of their numbers.
        actions = dict(zip(seen.fields["legal"], sorted(state.legal_actions()), strict=True))
        here = InformationSet(key=key, agent=agent, observation=seen, actions=actions)
        if found.setdefault(key, here) != here:
            raise ConfigError(
                f"exploitability: the observation of {agent} in {arena.name} differs among states "
                f"of the information set {key!r}; set render=arenas.external.openspiel.show"
            )
    return list(found.values())


def _states(state: Any) -> Iterator[Any]:
    """Yield a state and all states that can follow, each before its own successors."""
    waiting = [state]
    while waiting:
        state = waiting.pop()
        yield state
        if not state.is_terminal():
            waiting += [state.child(action) for action in reversed(state.legal_actions())]
