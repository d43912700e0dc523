"""The tool: a function that an agent calls during its move, with a name and a JSON schema."""

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from numbers import Number
from types import MappingProxyType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError

from selfplay.errors import one_line
from selfplay.types import ToolCall

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""Pattern of the name of a tool."""
RESERVED = frozenset(
    {"think", "thinking", "answer", "result", "tool", "tools", "tool_call", "tool_response"}
)
"""Names that are tags of thinking, of answers or of the call formats."""
FLAGS = MappingProxyType({"earlier": "session", "state": "stateful"})
"""Name of each parameter of `call` that the library sets, to the class attribute of a tool that
asks for it."""
LONGEST_SCHEMA = 20_000
"""Largest number of characters of a tool's schema and description."""


class ToolError(Exception):
    """Raised by a tool that cannot answer a call.

    The agent is shown `message`; `reason` is a short name, which metrics count. A `reason` that is
    no such name raises ValueError, and the call then counts as `raised`.
    """

    def __init__(self, reason: str, message: str) -> None:
        if not isinstance(reason, str) or not NAME.fullmatch(reason):
            raise ValueError(
                f"the reason of a ToolError is a short name, such as not_found, not {reason!r}; "
                "its second argument is the text for the agent"
            )
        super().__init__(f"{reason}: {message}")
        self.reason, self.message = reason, message


class Tool:
    """Base class of tools. A config lists them in a `Toolbox`; the rollout calls `answer`.

    An author writes `call` with type hints and a docstring: its parameters become the JSON schema,
    and arguments are checked against it before the call. Calls run in threads, several at once. A
    tool keeps no state of an episode: one that needs some reads it from `earlier`, so that
    episodes can branch and be replayed.
    """

    name: str = ""
    """Name in the calls of a model."""
    description: str = ""
    """One or two sentences for the model."""
    seconds: float = 10.0
    """Time limit of a call, in seconds."""
    session: ClassVar[bool] = False
    """True if `call` takes `earlier`: the agent's earlier calls of this tool in the episode."""
    stateful: ClassVar[bool] = False
    """True if `call` takes `state`: the data of the episode that the arena gives to the agent (see
    `Arena.tool_state`). It is the call's own copy, which `call` may change."""

    def call(self, **arguments: Any) -> str:
        """Return the text for the agent. Raises ToolError with the reason of a failure."""
        raise NotImplementedError(f"{type(self).__name__}.call")

    def answer(
        self,
        arguments: Mapping[str, Any],
        earlier: Sequence[ToolCall] = (),
        state: Any = None,
    ) -> str:
        """Check the arguments, call the tool and return the text for the agent.

        Args:
            arguments: Arguments by name, as the model wrote them.
            earlier: The agent's calls of this tool before this one in the episode.
            state: Data of the episode, for a tool that is stateful.

        Raises ToolError for arguments that do not fit the schema, TypeError for a result that is
        neither a text nor a number, and whatever `call` raises.
        """
        checked = self.checked(arguments)
        more: dict[str, Any] = {"earlier": tuple(earlier)} if self.session else {}
        if self.stateful:
            more["state"] = state
        result: object = self.call(**checked, **more)
        if not isinstance(result, str | Number):
            raise TypeError(
                f"{type(self).__name__}.call returned {type(result).__name__}, not a text"
            )
        return str(result)

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in their declared types; raises ToolError."""
        try:
            found = self._arguments.model_validate(dict(arguments))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            at = ".".join(map(str, first["loc"])) or "arguments"
            raise ToolError("bad_arguments", f"{at}: {first['msg']}"[:200]) from error
        return {name: getattr(found, name) for name in type(found).model_fields}

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments."""
        schema = self._arguments.model_json_schema()
        schema.pop("title", None)
        for each in schema.get("properties", {}).values():
            each.pop("title", None)
        return schema

    @property
    def function(self) -> dict[str, Any]:
        """Description of the tool in the form of chat templates and of OpenAI's API."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }

    @property
    def text_parameter(self) -> str | None:
        """Name of the only parameter if it is a text, else None; then a call needs no JSON."""
        properties = self.parameters.get("properties", {})
        if not isinstance(properties, Mapping) or len(properties) != 1:
            return None
        ((name, each),) = properties.items()
        return name if isinstance(each, Mapping) and each.get("type") == "string" else None

    @cached_property
    def _arguments(self) -> type[BaseModel]:
        kind = type(self)
        if kind.call is Tool.call:
            raise ValueError(f"tool {self.name!r}: {kind.__name__} has no method call; write one")
        given = _hints(self.call, title=self.name)
        own = []
        for name, flag in FLAGS.items():
            each = given.get(name)
            if getattr(self, flag):
                if each is None:
                    raise ValueError(
                        f"tool {self.name!r}: {kind.__name__} has {flag} = True, so its call needs "
                        f"a parameter {name!r}"
                    )
                own.append(name)
            elif each is not None and not _is_plain(each.annotation):
                raise ValueError(
                    f"tool {self.name!r}: call has a parameter {name!r}, which the library sets if "
                    f"{kind.__name__} has {flag} = True; set it, or declare {name}: str if the "
                    "model writes it"
                )
        return arguments_model(self.call, title=self.name, without=own)


def arguments_model(function: Any, *, title: str, without: Sequence[str] = ()) -> type[BaseModel]:
    """Return the pydantic model of a function's arguments.

    Raises ValueError, which names the tool, for a function that cannot be a tool: it is
    asynchronous or a generator, or one of its parameters has no name or no JSON schema.

    Args:
        function: Function with type hints; a parameter without one takes text.
        title: Name for errors.
        without: Parameters that the library sets itself.
    """
    asks = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(ask(function) for ask in asks):
        raise ValueError(
            f"tool {title!r}: it is called in a thread and returns a text; write it with def, "
            "without async and yield"
        )
    fields: dict[str, Any] = {}
    for name, each in _hints(function, title=title).items():
        if name in without:
            continue
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise ValueError(
                f"tool {title!r}: its parameter {name!r} has no name in a call; declare "
                "parameters that can be passed by name"
            )
        hint = str if each.annotation is each.empty else each.annotation
        field: Any = (hint, ... if each.default is each.empty else each.default)
        try:
            TypeAdapter(hint).json_schema()
            create_model(title or "tool", **{name: field})
        except (NameError, TypeError, PydanticUserError) as error:
            raise ValueError(
                f"tool {title!r}: its parameter {name!r} cannot be part of a JSON schema: "
                f"{one_line(error)}"
            ) from error
        fields[name] = field
    return create_model(title or "tool", __config__=ConfigDict(extra="forbid"), **fields)


def _is_plain(hint: Any) -> bool:
    """Return True for the type of a text or number, of choices among them, or of None."""
    if get_origin(hint) in (Union, UnionType):
        return all(map(_is_plain, get_args(hint)))
    return get_origin(hint) is Literal or hint in (str, int, float, bool, type(None))


def _hints(function: Any, *, title: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function with their types; raises ValueError if a type hint
    cannot be read."""
    try:
        return inspect.signature(function, eval_str=True).parameters
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ValueError(
            f"tool {title!r}: its type hints cannot be read: {one_line(error)}; import their names "
            "where they are read, not under TYPE_CHECKING"
        ) from error
