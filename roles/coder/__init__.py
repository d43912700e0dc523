"""The coder, which writes a part of a program."""

from typing import Any

from roles.prompts import load
from selfplay.role import Role, fenced
from selfplay.types import Action, InvalidAction


class Coder(Role):
    """Role that parses code from a single Python fence or, without a fence, from the whole text."""

    def __init__(self, *, game: str = "coder", style: str = "full", **settings: Any) -> None:
        """Args:
        game: Name of the game, whose prompts are used.
        style: Name of a prompt style of the game, or the path of a template.
        settings: Settings of `Role`.
        """
        super().__init__(template=load(game, style), **settings)

    def parse(self, text: str) -> Action:
        """Return the code. Raises `InvalidAction`: several_answers for several Python fences,
        bad_form for any other fence, no_code for an empty program."""
        blocks = fenced(text, "python")
        if len(blocks) > 1:
            raise InvalidAction("several_answers")
        if not blocks and "```" in text:
            raise InvalidAction("bad_form")
        code = blocks[0] if blocks else text.strip("\n")
        if not code.strip():
            raise InvalidAction("no_code")
        return code
