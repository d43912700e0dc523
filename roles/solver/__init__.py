"""The solver: works a task out and answers it."""

from typing import Any

from roles.prompts import load
from selfplay.role import ThinkingRole, fenced
from selfplay.types import Action, InvalidAction

FENCES = ("output", "input", "python")


class Solver(ThinkingRole):
    """Answers with an output, an input or a program, in a code fence or bare."""

    def __init__(self, *, style: str = "full", **settings: Any) -> None:
        """`style` names a prompt template of `roles/prompts`, or is the path of one."""
        super().__init__(template=load("solver", style), **settings)

    def parse(self, text: str) -> Action:
        """What stands in the answer's only fence, or the answer itself where it has none."""
        answer = super().parse(text)
        blocks = [block for language in FENCES for block in fenced(answer, language)]
        if len(blocks) > 1:
            raise InvalidAction("several_answers")
        if blocks:
            return blocks[0].strip()
        if not answer or "```" in answer:
            raise InvalidAction("bad_form")
        return answer
