"""The formats in which models write tool calls, and in which they are given the results.

hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen do. llama:
the whole answer is `{"name": ..., "parameters": {...}}`, as Llama 3 does. tags:
`<python>...</python>`, one pair of tags per tool, for models whose chat template knows no
tools (Search-R1 2503.09516 and ReTool 2504.11536 use such tags). Only text after the thinking
counts.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from selfplay.types import Message, ToolCall, well_formed

LONGEST_CALL = 100_000
"""Largest number of characters of a call."""
DEEPEST = 20
"""Largest depth of lists and mappings in the arguments."""
MOST_PARSED = 64
"""Largest number of calls that are read from one completion; the others are ignored."""

_OWN_TAGS = re.compile(
    r"<(?=/?(?:tool_call|tool_response|tools|think|thinking|seed:think)\b)|\[(?=/?THINK\])",
    re.IGNORECASE,
)
"""Pattern of the first character of a tag of the formats or of thinking."""
_ORDINARY = {"<": "&lt;", "[": "&#91;"}
"""Text that replaces the first character of such a tag."""


@dataclass(frozen=True, kw_only=True)
class ParsedCall:
    """A call as it was read from a completion."""

    name: str
    """Name of the tool as the model wrote it; "" if there is none."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments by name: plain JSON data."""
    written: str = "{}"
    """Arguments as JSON; the raw text if it did not parse."""
    problem: str = ""
    """Reason why the call did not parse; "" if it did."""


class CallFormat(Protocol):
    """A format of calls."""

    def calls(self, text: str) -> list[ParsedCall]:
        """Return the calls in the text of a completion, without its thinking."""
        ...


class Hermes:
    """The format of Hermes and Qwen: JSON objects between `<tool_call>` tags."""

    def calls(self, text: str) -> list[ParsedCall]:
        """Return the calls in order; a tag that is not closed is a call that did not parse."""
        return [
            _from_json(inside, keys=("arguments", "parameters"))
            if closed
            else _broken(inside, "</tool_call> is missing")
            for inside, closed in _between(text, "<tool_call>", "</tool_call>")
        ]

    def instructions(self, functions: Sequence[Mapping[str, Any]]) -> str:
        """Return the text that describes the tools and the format to a model."""
        return "\n".join(
            [
                "You may call tools before you answer:",
                *(json.dumps(each["function"], ensure_ascii=False) for each in functions),
                'A call is <tool_call>{"name": NAME, "arguments": {...}}</tool_call>.',
                "The result follows in <tool_response> tags.",
            ]
        )


class Llama:
    """The format of Llama 3: the whole answer is one JSON object, or several with `;` between."""

    def calls(self, text: str) -> list[ParsedCall]:
        """Return the calls in order; a text that begins like a call and is no JSON is broken."""
        rest = text.replace("<|python_tag|>", "").strip()
        if not re.match(r'\{\s*"(name|type)"\s*:', rest):
            return []
        found: list[ParsedCall] = []
        while rest.startswith("{") and len(found) < MOST_PARSED:
            try:
                _, end = json.JSONDecoder().raw_decode(rest[:LONGEST_CALL])
            except (ValueError, RecursionError):
                return [*found, _broken(rest, "not a JSON object")]
            found.append(_from_json(rest[:end], keys=("parameters", "arguments")))
            rest = rest[end:].lstrip(" \n;,")
        return found


class Tags:
    """One pair of tags per tool; between them is the only argument, or JSON with all arguments."""

    def __init__(self, text_parameters: Mapping[str, str | None]) -> None:
        """`text_parameters`: the tools by name, each with its only parameter if it is a text."""
        self.text_parameters = dict(text_parameters)
        names = "|".join(sorted(map(re.escape, self.text_parameters), key=len, reverse=True))
        self._opening = re.compile(f"<({names})>")

    def calls(self, text: str) -> list[ParsedCall]:
        """Return the calls in order; a tag that is not closed is a call that did not parse."""
        found: list[ParsedCall] = []
        position = 0
        while len(found) < MOST_PARSED and (opening := self._opening.search(text, position)):
            name, start = opening[1], opening.end()
            end = text.find(f"</{name}>", start)
            if end < 0:
                return [*found, _broken(text[start:], f"</{name}> is missing", name=name)]
            found.append(self._call(name, text[start:end]))
            position = end
        return found

    def _call(self, name: str, inside: str) -> ParsedCall:
        parameter = self.text_parameters[name]
        if len(inside) > LONGEST_CALL:
            return _broken(inside, "the call is too long", name=name)
        if parameter is None:
            return _read(name, inside)
        value = {parameter: inside.strip("\n") if "\n" in inside else inside.strip()}
        return ParsedCall(name=name, arguments=value, written=json.dumps(value, ensure_ascii=False))

    def instructions(self, functions: Sequence[Mapping[str, Any]]) -> str:
        """Return the text that describes the tools and their tags to a model."""
        lines = ["You may call tools before you answer:"]
        for function in (each["function"] for each in functions):
            name, parameter = function["name"], self.text_parameters[function["name"]]
            inside = parameter if parameter else json.dumps(function["parameters"])
            lines.append(f"<{name}>{inside}</{name}> {function['description']}".rstrip())
        lines.append("The result follows in <tool_response> tags.")
        return "\n".join(lines)


def tool_messages(calls: Sequence[ToolCall], *, native: bool) -> list[Message]:
    """Return the messages that show the results of calls, safe for a prompt.

    Args:
        calls: The answered calls.
        native: True for messages of the role "tool", which the chat template frames; False for one
            user message with tags.
    """
    if native:
        return [
            {"role": "tool", "name": call.name, "content": defused(call.result)} for call in calls
        ]
    framed = [f"<tool_response>\n{defused(call.result)}\n</tool_response>" for call in calls]
    return [{"role": "user", "content": "\n".join(framed)}]


def defused(text: str) -> str:
    """Return the text with the tags of the formats and of thinking as ordinary characters.

    A text that the agent did not write, such as a result, can then neither close its frame nor
    imitate a call, a result or thinking. The renderer does the same for control tokens.
    """
    return _OWN_TAGS.sub(lambda found: _ORDINARY[found[0]], text)


def _between(text: str, opening: str, closing: str) -> list[tuple[str, bool]]:
    """Return the texts between tags in order, each with True if it was closed."""
    found: list[tuple[str, bool]] = []
    position = text.find(opening)
    while position >= 0 and len(found) < MOST_PARSED:
        start = position + len(opening)
        end = text.find(closing, start)
        if end < 0:
            return [*found, (text[start:], False)]
        found.append((text[start:end], True))
        position = text.find(opening, end)
    return found


def _from_json(text: str, *, keys: Sequence[str]) -> ParsedCall:
    """Return the call in a JSON object with a name and, under one of `keys`, the arguments."""
    try:
        data = _plain(text)
    except ValueError as error:
        return _broken(text, str(error))
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return _broken(text, 'a JSON object with "name" is needed')
    name = well_formed(data["name"])[:64]
    arguments: Any = next((data[key] for key in keys if key in data), {})
    if isinstance(arguments, str):  # some models write the arguments as a text of JSON
        return _read(name, arguments)
    return _with(name, arguments, text)


def _read(name: str, text: str) -> ParsedCall:
    try:
        return _with(name, _plain(text), text)
    except ValueError as error:
        return _broken(text, str(error), name=name)


def _with(name: str, arguments: Any, text: str) -> ParsedCall:
    if not isinstance(arguments, dict):
        return _broken(text, "the arguments are not a JSON object", name=name)
    written = json.dumps(arguments, ensure_ascii=False)
    return ParsedCall(name=name, arguments=arguments, written=written)


def _broken(text: str, problem: str, *, name: str = "") -> ParsedCall:
    return ParsedCall(name=name, written=text[:1000], problem=problem[:200])


def _plain(text: str) -> Any:
    """Return JSON data with finite numbers and well-formed text; raises ValueError in one line."""
    if len(text) > LONGEST_CALL:
        raise ValueError("the call is too long")
    try:
        return _checked(json.loads(text, parse_constant=_no_constant), 0)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _checked(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is too large")
    if isinstance(value, list):
        return [_checked(each, depth + 1) for each in value]
    if isinstance(value, dict):
        return {well_formed(key): _checked(each, depth + 1) for key, each in value.items()}
    return value
