"""The judge, which reads a debate and gives a verdict."""

from typing import Any

from roles.prompts import load
from selfplay.role import ThinkingRole
from selfplay.types import Action, InvalidAction


class Judge(ThinkingRole):
    """Role that parses the verdict after the thoughts; the arena checks the verdict."""

    def __init__(self, *, game: str = "judge", style: str = "full", **settings: Any) -> None:
        """Args:
        game: Name of the game, whose prompts are used.
        style: Name of a prompt style of the game, or the path of a template.
        settings: Settings of `Role`.
        """
        super().__init__(template=load(game, style), **settings)

    def parse(self, text: str) -> Action:
        """Return the verdict; raises `InvalidAction` for an empty one."""
        verdict = super().parse(text)
        if not verdict:
            raise InvalidAction("no_verdict")
        return verdict
