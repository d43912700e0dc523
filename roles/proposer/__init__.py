"""The proposer, which makes a new task for the solvers."""

import json
from typing import Any

from roles.prompts import load
from selfplay.role import ThinkingRole, fenced
from selfplay.types import Action, InvalidAction


class Proposer(ThinkingRole):
    """Role that parses a program and an input, or inputs and a message for a given program."""

    def __init__(self, *, style: str = "full", **settings: Any) -> None:
        """`style` is the name of a prompt style of the role, or the path of a template."""
        super().__init__(template=load("proposer", style), **settings)

    def parse(self, text: str) -> Action:
        """Return JSON with `inputs`, and `program`, `message` or both, from the answer's fences.

        Raises `InvalidAction`, with the reason bad_form if there is no input, neither a program nor
        a message, or more than one of either.
        """
        answer = super().parse(text)
        programs, inputs = fenced(answer, "python"), fenced(answer, "input")
        messages = fenced(answer, "message")
        if not inputs or len(programs) > 1 or len(messages) > 1 or not (programs or messages):
            raise InvalidAction("bad_form")
        proposal: dict[str, Any] = {"inputs": [text.strip() for text in inputs]}
        if programs:
            proposal["program"] = programs[0]
        if messages:
            proposal["message"] = messages[0].strip()
        return json.dumps(proposal)
