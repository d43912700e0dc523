"""The coder: writes its part of a program."""

from typing import Any

from roles.prompts import load
from selfplay.role import Role, fenced
from selfplay.types import Action, InvalidAction


class Coder(Role):
    """Answers with code, in its only Python fence or bare."""

    def __init__(self, *, game: str = "coder", style: str = "full", **settings: Any) -> None:
        """`style` names a prompt template of the game in `roles/prompts`, or is the path of one."""
        super().__init__(template=load(game, style), **settings)

    def parse(self, text: str) -> Action:
        """The code; raises `InvalidAction`."""
        blocks = fenced(text, "python")
        if len(blocks) > 1:
            raise InvalidAction("several_answers")
        if not blocks and "```" in text:
            raise InvalidAction("bad_form")
        code = blocks[0] if blocks else text.strip("\n")
        if not code.strip():
            raise InvalidAction("no_code")
        return code
