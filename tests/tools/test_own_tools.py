"""Tests of faults of users' own tools: each gives an error of one line."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Literal

import pytest

from selfplay.tools import Tool, Toolbox, ToolError
from selfplay.tools.calculator import Calculator
from selfplay.tools.call_format import ParsedCall
from selfplay.tools.function import Function
from selfplay.tools.python import Python
from selfplay.types import ToolCall


class SessionWithoutEarlier(Tool):
    session = True

    def call(self, expression: str) -> str:  # type: ignore[override]
        return expression


class StatefulWithoutState(Tool):
    stateful = True

    def call(self, expression: str) -> str:  # type: ignore[override]
        return expression


class EarlierWithoutSession(Tool):
    def call(self, text: str, earlier: Sequence[ToolCall]) -> str:  # type: ignore[override]
        return text


class OptionalStateWithoutStateful(Tool):
    def call(self, state: dict[str, str] | None = None) -> str:  # type: ignore[override]
        return "text"


class StateWithoutStateful(Tool):
    def call(self, text: str, state) -> str:  # type: ignore[no-untyped-def,override]
        return text


class NoCall(Tool):
    def run(self, text: str) -> str:
        return text


class Asynchronous(Tool):
    async def call(self, text: str) -> str:  # type: ignore[override]
        return text


class Yielding(Tool):
    def call(self, text: str) -> Iterator[str]:  # type: ignore[override]
        yield text


class NoSchema(Tool):
    def call(self, rng: Random) -> str:  # type: ignore[override]
        return "text"


class CalledBack(Tool):
    def call(self, back: Callable[[], str]) -> str:  # type: ignore[override]
        return "text"


class NotImported(Tool):
    def call(self, text: "Unheard") -> str:  # type: ignore[name-defined,override]  # noqa: F821
        return "text"


@pytest.mark.parametrize(
    ("tool", "line"),
    [
        (
            SessionWithoutEarlier(),
            "tool 'own': SessionWithoutEarlier has session = True, so its call needs a parameter "
            "'earlier'",
        ),
        (
            StatefulWithoutState(),
            "tool 'own': StatefulWithoutState has stateful = True, so its call needs a parameter "
            "'state'",
        ),
        (EarlierWithoutSession(), "'earlier', .* if EarlierWithoutSession has session = True"),
        (StateWithoutStateful(), "'state', .* if StateWithoutStateful has stateful = True"),
        (
            OptionalStateWithoutStateful(),
            "'state', .* if OptionalStateWithoutStateful has stateful",
        ),
        (NoCall(), "tool 'own': NoCall has no method call"),
        (Asynchronous(), "tool 'own': .*without async"),
        (Yielding(), "tool 'own': .*without async and yield"),
        (NoSchema(), "tool 'own': its parameter 'rng' cannot be part of a JSON schema: Pydantic"),
        (CalledBack(), "tool 'own': its parameter 'back' cannot be part of a JSON schema: Pyd"),
        (NotImported(), "tool 'own': its type hints cannot be read: NameError: name 'Unheard'"),
    ],
)
def test_a_tool_that_no_call_can_use_is_refused(tool: Tool, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Toolbox(tools={"own": tool})


@pytest.mark.parametrize("seconds", ["5", None, 0, -1.0])
def test_the_time_limit_is_a_positive_number(seconds: Any) -> None:
    tool = Calculator()
    tool.seconds = seconds
    with pytest.raises(ValueError, match=rf"^tools\.own\.seconds: .*, not {seconds!r}$"):
        Toolbox(tools={"own": tool})


def test_a_parameter_may_have_the_name_of_one_that_the_library_sets() -> None:
    class Postcode(Tool):
        def call(  # type: ignore[override]
            self, state: Literal["Ohio"] | None, earlier: bool = False
        ) -> str:
            return f"{state} {earlier}"

    (made,) = Toolbox(tools={"postcode": Postcode()}).functions
    assert list(made["function"]["parameters"]["properties"]) == ["state", "earlier"]
    assert Postcode().answer({"state": "Ohio", "earlier": True}) == "Ohio True"


@pytest.mark.parametrize("session", [False, True])
def test_a_program_is_the_only_argument_of_python(session: bool) -> None:
    tool = Python(executor=None, session=session)  # type: ignore[arg-type]
    assert list(tool.parameters["properties"]) == ["code"] and tool.text_parameter == "code"


class Answering(Tool):
    """A tool that returns a given result, or raises it."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def call(self) -> str:  # type: ignore[override]
        if isinstance(self.result, BaseException):
            raise self.result
        made: str = self.result
        return made


def answered(result: Any) -> ToolCall:
    return Toolbox(tools={"own": Answering(result)}).run(ParsedCall(name="own"))


@pytest.mark.parametrize("result", ["12", 12, 0.5, True])
def test_texts_and_numbers_are_results(result: object) -> None:
    assert answered(result) == ToolCall(name="own", arguments="{}", result=str(result))


@pytest.mark.parametrize("result", [None, ["a"], {"a": 1}, b"text"])
def test_another_result_is_an_error_of_the_tool(result: object) -> None:
    found = answered(result)
    kind = type(result).__name__
    assert found.error == "raised"
    assert found.result == f"error: raised: TypeError: Answering.call returned {kind}, not a text"


def test_a_tool_cannot_end_the_run() -> None:
    found = answered(SystemExit(7))
    assert (found.error, found.result) == ("raised", "error: raised: SystemExit: 7")


@pytest.mark.parametrize("reason", ["no such country!", "", "a" * 65, 404])
def test_the_reason_of_an_error_is_a_short_name(reason: Any) -> None:
    class Failing(Tool):
        def call(self) -> str:  # type: ignore[override]
            raise ToolError(reason, "no entry")

    found = Toolbox(tools={"own": Failing()}).run(ParsedCall(name="own"))
    assert found.error == "raised"
    assert f"a short name, such as not_found, not {reason!r}" in found.result


class Adder(Tool):
    """A tool that a config names as if it were a function."""

    def call(self, first: int, second: int) -> str:  # type: ignore[override]
        return str(first + second)


async def later(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "Adder",
            r"is a tool, not a function; write _target_: tests\.tools\.test_own_tools\.Adder",
        ),
        ("later", "tool 'later': .*without async"),
    ],
)
def test_a_target_that_is_no_plain_function_is_refused(name: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Function(function=f"tests.tools.test_own_tools.{name}")


def test_the_error_of_a_config_names_the_role_and_the_tool() -> None:
    from selfplay.config.instantiate import build
    from selfplay.errors import ConfigError

    own: Mapping[str, Any] = {"_target_": "tests.tools.test_own_tools.NoSchema"}
    node = {"_target_": "selfplay.tools.Toolbox", "tools": {"own": own}}
    with pytest.raises(
        ConfigError, match=r"^roles\.solver\.tools: tool 'own': its parameter 'rng'"
    ):
        build(node, where="roles.solver.tools")
