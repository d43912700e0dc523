"""The tools of both sides of a service desk of tau2-bench, with the package's own descriptions."""

import json
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from pydantic import ValidationError

from arenas.tau2.package import DomainName, Side, Tau2Call, Tau2Records, domain_of
from selfplay.errors import ConfigError, nearest
from selfplay.tools import Tool, Toolbox, ToolError
from selfplay.tools.toolbox import FormatName
from selfplay.types import ToolCall


class Tau2Tool(Tool):
    """A tool of the package. It works on a copy of the episode's databases.

    `tau2_toolbox` makes one for each tool of a side. The arena makes the same calls again when the
    move is complete.
    """

    stateful = True

    def __init__(self, *, domain: DomainName, side: Side, operation: str) -> None:
        """Args:
        domain: Name of the domain.
        side: The side that has the tool.
        operation: The package's name of the tool.
        """
        known = domain_of(domain).tools(side)
        if operation not in known:
            raise ValueError(f"no tool {operation!r} of the {side}; {nearest(operation, known)}")
        self.side, self.operation, self._given = side, operation, known[operation]
        self.description = str(self._given.openai_schema["function"]["description"])
        self.seconds = 60.0  # a change copies a database of several MB

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments."""
        schema = dict(self._given.openai_schema["function"]["parameters"])
        schema.pop("title", None)
        return schema

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given arguments as plain data; raises ToolError if they do not fit."""
        unknown = set(arguments) - set(self._given.params.model_fields)
        if unknown:
            raise ToolError("bad_arguments", f"{min(unknown)[:60]}: no such argument")
        try:
            found = self._given.params.model_validate(dict(arguments))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            at = ".".join(map(str, first["loc"])) or "arguments"
            raise ToolError("bad_arguments", f"{at}: {first['msg']}"[:200]) from error
        return dict(found.model_dump(mode="json", exclude_unset=True))

    def answer(
        self,
        arguments: Mapping[str, Any],
        earlier: Sequence[ToolCall] = (),
        state: Tau2Records | None = None,
    ) -> str:
        """Return the package's response; raises ToolError if the package refuses the call.

        Arguments stay a mapping, because tools of the package have one that is called `state`.
        """
        if state is None:
            raise ConfigError(f"tools.{self.name}: this tool needs arena=tau2")
        return self.made(arguments, state)[1]

    def made(self, arguments: Mapping[str, Any], records: Tau2Records) -> tuple[Tau2Call, str]:
        """Return the call with checked arguments, and the package's response to it.

        Raises ToolError if the arguments do not fit or the package refuses the call.
        """
        plain = self.checked(arguments)
        call = Tau2Call(side=self.side, name=self.operation, arguments=json.dumps(plain))
        text, failed = records.respond(call)
        if failed:
            raise ToolError("refused", text.removeprefix("Error: "))
        return call, text


@cache
def tools_of(domain: DomainName, side: Side) -> Mapping[str, Tau2Tool]:
    """Return the tools of a side, by name; the user of most domains has none."""
    names = domain_of(domain).tools(side)
    return {name: Tau2Tool(domain=domain, side=side, operation=name) for name in names}


def tau2_toolbox(
    *,
    domain: DomainName,
    side: Side = "agent",
    max_calls: int = 10,
    max_characters: int = 4000,
    format: FormatName = "auto",
    describe: bool = True,
) -> Toolbox | None:
    """Return a toolbox with all tools of a side; None if the side has no tools.

    Args:
        domain: Name of the domain.
        side: agent or user. Only the user of telecom has tools: those of a phone.
        max_calls: Maximum number of calls in one move.
        max_characters: Maximum number of characters of a result; the rest is cut off.
        format: See `Toolbox`.
        describe: See `Toolbox`.
    """
    tools = tools_of(domain, side)
    if not tools:
        return None
    return Toolbox(
        tools=tools,
        max_calls=max_calls,
        max_characters=max_characters,
        format=format,
        describe=describe,
    )
