"""Moves of the service desk's agent with its tools, played without a rollout."""

import json
from collections.abc import Sequence
from functools import lru_cache

from arenas.desk.arena import Desk
from arenas.desk.domain import Change
from arenas.desk.tool import DeskTool
from selfplay.tools import Toolbox
from selfplay.tools.call_format import ParsedCall
from selfplay.types import ToolCall


def toolbox(arena: Desk) -> Toolbox:
    """Return a toolbox with all operations of the episode's domain."""
    return _toolbox(tuple(arena.desk.domain.operations))


@lru_cache
def _toolbox(names: tuple[str, ...]) -> Toolbox:
    """Return the toolbox of a domain. It has no state: its tools read the state of the episode."""
    return Toolbox(tools={name: DeskTool(operation=name) for name in names})


def called(arena: Desk, calls: Sequence[Change]) -> list[ToolCall]:
    """Return the calls of one move with their results."""
    box, done = toolbox(arena), list[ToolCall]()
    for name, arguments in calls:
        parsed = ParsedCall(name=name, arguments=arguments, written=json.dumps(arguments))
        done.append(box.run(parsed, state=lambda: arena.tool_state("agent_0", done)))
    return done


def moved(arena: Desk, calls: Sequence[Change], words: str = "ok") -> list[ToolCall]:
    """Play one move of the agent and return its calls with their results."""
    done = called(arena, calls)
    arena.play_stage({"agent_0": arena.with_calls("agent_0", words, done)})
    return done
