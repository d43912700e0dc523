"""The prompt of a demonstration: as a role sees it in a run, with its tools and earlier calls."""

from collections.abc import Mapping, Sequence
from typing import Any

from selfplay.errors import ConfigError, nearest
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tool_use import ToolUse
from selfplay.role import Role
from selfplay.types import Demonstration, Observation, ToolCall


def role_of(shown: Demonstration, roles: Mapping[str, Role]) -> Role:
    """Return the role of a demonstration; raise ConfigError if the warm start has no such role."""
    if shown.role not in roles:
        hint = nearest(shown.role, roles)
        raise ConfigError(f"warmstart.roles: no {shown.role!r} to demonstrate; {hint}")
    return roles[shown.role]


def prompt_ids(
    role: Role,
    observation: Observation,
    renderer: ChatRenderer,
    called: Sequence[tuple[str, str]] = (),
) -> tuple[int, ...]:
    """Return the tokens of a prompt.

    Args:
        role: The role, with its tools.
        observation: The agent's view.
        renderer: Renderer of the model, without tools.
        called: Earlier completions of the same move that call tools, and the result of each.
    """
    messages = role.prompt(observation)
    if role.tools is None:
        return renderer.start(messages)
    use = ToolUse(role.tools, renderer)
    messages = use.prompt(messages, first=True)
    prompt = use.renderer.start(messages)
    for said, result in called:
        ids = (*renderer.completion_ids(said), renderer.end_ids[0])
        results = use.results([ToolCall(name=call.name, result=result) for call in use.calls(said)])
        extended = use.renderer.extend(prompt, ids, results)
        messages = [*messages, {"role": "assistant", "content": said}, *results]
        prompt = use.renderer.start(messages) if extended is None else extended
    return prompt


def identified(shown: Demonstration, roles: Mapping[str, Role]) -> list[Any]:
    """Return the plain data that a demonstration's prompt and completion depend on."""
    role = role_of(shown, roles)
    content: list[Any] = [role.prompt(shown.observation), *shown.called, shown.completion]
    if role.tools is not None:
        content.append([role.tools.format, role.tools.describe, role.tools.functions])
    return content
