"""The designer, which writes the settings of a game that others will play."""

from typing import Any

from roles.prompts import load
from selfplay.role import Role, fenced
from selfplay.types import Action, InvalidAction


class Designer(Role):
    """Role that parses one fence of JSON or, without a fence, the whole text.

    The arena checks the design.
    """

    def __init__(self, *, style: str = "full", **settings: Any) -> None:
        """`style` is the name of a prompt style of the role, or the path of a template."""
        super().__init__(template=load("designer", style), **settings)

    def parse(self, text: str) -> Action:
        """Return the text of the design. Raises `InvalidAction`: several_designs for several
        fences of JSON, no_design for an empty text."""
        found = fenced(text, "json")
        if len(found) > 1:
            raise InvalidAction("several_designs")
        design = (found[0] if found else text).strip()
        if not design:
            raise InvalidAction("no_design")
        return design
