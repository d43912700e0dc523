"""The tools of the agent: one for each operation on the database of the episode."""

from functools import cached_property
from inspect import getdoc
from typing import Any

from pydantic import BaseModel

from arenas.desk.domains import OPERATIONS
from selfplay.errors import ConfigError, nearest
from selfplay.tools import Tool
from selfplay.tools.tool import arguments_model


class DeskTool(Tool):
    """Tool that calls one operation of a desk. A config names a tool for each operation that the
    agent can call.

    The operation works on a copy of the episode's database. The arena makes the same changes again
    when the agent's move is complete.
    """

    stateful = True

    def __init__(self, *, operation: str) -> None:
        """`operation`: name of the operation, which is also the name of the tool."""
        if operation not in OPERATIONS:
            raise ValueError(f"no operation {operation!r}; {nearest(operation, OPERATIONS)}")
        self.operation, self._function = operation, OPERATIONS[operation]
        self.description = getdoc(self._function) or ""

    def call(self, **arguments: Any) -> str:
        """Return the text of the operation on `state`; raises ToolError if it is impossible."""
        state = arguments.pop("state")
        if self.name not in ("", self.operation):
            raise ConfigError(
                f"tools.{self.name}: the tool of the operation {self.operation!r} must be named "
                f"{self.operation}, because the arena reads calls by their names"
            )
        return self._function(state, **arguments)

    @cached_property
    def _arguments(self) -> type[BaseModel]:
        return arguments_model(self._function, title=self.operation, without=("tables",))


TOOLS = {name: DeskTool(operation=name) for name in OPERATIONS}
"""A tool for every operation, by name."""
