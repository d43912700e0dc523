"""The Python tool: programs of a model, in the isolated executor."""

import json
from collections.abc import Sequence
from functools import cached_property

from pydantic import BaseModel

from selfplay.sandbox import Call, Executor, FailureReason, LiteralError, parse_literal
from selfplay.tools.tool import Tool, ToolError, arguments_model
from selfplay.types import ToolCall

LONGEST = 20_000
"""Largest number of characters of a program."""

WRAPPER = """
import ast

def f(sources, characters):
    printed, kept = [], 0

    def show(*values, sep=" ", end="\\n", file=None, flush=False):
        nonlocal kept
        text = sep.join(map(str, values)) + end
        if kept < characters:
            printed.append(text[: characters - kept])
        kept += len(text)

    names = {"__name__": "__main__", "print": show}
    for number, source in enumerate(sources):
        tree = ast.parse(source, "<program>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed.clear()
        kept = 0
        try:
            exec(compile(tree, "<program>", "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "<program>", "eval"), names)
                if value is not None:
                    show(repr(value))
        except Exception as error:
            if number == len(sources) - 1:
                return "".join(printed), f"{type(error).__name__}: {error}"[:300]
    return "".join(printed), ""
"""
"""Program that runs a model's program. It returns the printed text, with the value of a last
expression, and the error."""


class Python(Tool):
    """Runs a program and returns its output, with the value of a last expression.

    Every call runs in a fresh isolated process without files or network. With `session` the
    process first runs the agent's earlier programs of the episode again, so that their names are
    defined; a call then costs as much as all programs so far.
    """

    description = (
        "Runs a Python program in isolation and returns what it prints and the value of its last "
        "line."
    )

    def __init__(
        self,
        *,
        executor: Executor,
        session: bool = False,
        characters: int = 2000,
        seconds: float = 30.0,
    ) -> None:
        """Args:
        executor: Isolated executor, which limits processor time and memory: a service of the
            config.
        session: True to define the names of the agent's earlier programs of the episode.
        characters: Maximum number of printed characters that are kept.
        seconds: Time limit of a call, with the wait for the executor.
        """
        if characters < 1:
            raise ValueError("characters is at least 1")
        self.executor, self.session = executor, session  # type: ignore[misc]
        self.characters, self.seconds = characters, seconds
        if session:
            self.description = f"{type(self).description} Names of earlier programs stay defined."

    def call(self, code: str, earlier: Sequence[ToolCall] = ()) -> str:  # type: ignore[override]
        """Return the output; raises ToolError with the executor's reason, `syntax`, `raised`, or
        `bad_arguments` for a program that is too long."""
        if len(code) > LONGEST:
            raise ToolError("bad_arguments", f"more than {LONGEST} characters")
        before = [json.loads(each.arguments)["code"] for each in earlier if not each.error]
        sources = [*before, code]
        arguments = f"{sources!r}, {self.characters}"
        (outcome,) = self.executor.run([Call(program=WRAPPER, arguments=arguments)])
        if not outcome.ok or outcome.value is None:
            reason = outcome.reason
            raised = reason is FailureReason.RAISED and "SyntaxError" in outcome.detail
            raise ToolError("syntax" if raised else reason.value, outcome.detail or _WORDS[reason])
        printed, error = _pair(outcome.value)
        if error:
            raise ToolError("raised", f"{error}\n{printed}".strip())
        return printed.rstrip("\n") or "(no output)"

    @cached_property
    def _arguments(self) -> type[BaseModel]:
        return arguments_model(self.call, title=self.name, without=("earlier",))


_WORDS = {reason: reason.value.replace("_", " ") for reason in FailureReason}
"""Words for the reasons that come without a detail."""


def _pair(value: str) -> tuple[str, str]:
    """Return the two texts of the wrapper's result; raises ToolError if the program changed it."""
    try:
        pair = parse_literal(value)
    except LiteralError as error:
        raise ToolError("not_plain_data", "the program broke its own output") from error
    if isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(each, str) for each in pair):
        return pair
    raise ToolError("not_plain_data", "the program broke its own output")
