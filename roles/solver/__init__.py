"""The solver, which works on a task and answers it."""

from typing import Any

from roles.prompts import load
from selfplay.role import ThinkingRole, fenced
from selfplay.types import Action, InvalidAction

FENCES = ("output", "input", "python")


class Solver(ThinkingRole):
    """Role that parses an output, an input or a program from a code fence, or from the whole
    answer."""

    def __init__(self, *, style: str = "full", **settings: Any) -> None:
        """`style` is the name of a prompt style of the role, or the path of a template."""
        super().__init__(template=load("solver", style), **settings)

    def parse(self, text: str) -> Action:
        """Return the content of the answer's only fence, or the answer if it has none.

        Raises `InvalidAction`: several_answers for several fences, bad_form for a fence of another
        language and for an empty answer, and the reasons of `ThinkingRole`.
        """
        answer = super().parse(text)
        blocks = [block for language in FENCES for block in fenced(answer, language)]
        if len(blocks) > 1:
            raise InvalidAction("several_answers")
        if blocks:
            return blocks[0].strip()
        if not answer or "```" in answer:
            raise InvalidAction("bad_form")
        return answer
