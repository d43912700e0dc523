"""The player, whose text is only a move or a message."""

from typing import Any

from roles.prompts import load
from selfplay.role import Role
from selfplay.types import Action, InvalidAction


class Player(Role):
    """Role whose whole text is the action; the arena checks if the move is legal."""

    def __init__(self, *, game: str, style: str = "full", **settings: Any) -> None:
        """Args:
        game: Name of the game, whose prompts are used.
        style: Name of a prompt style of the game, or the path of a template.
        settings: Settings of `Role`.
        """
        super().__init__(template=load(game, style), **settings)

    def parse(self, text: str) -> Action:
        """Return the text without white space around it; raises `InvalidAction` if it is empty."""
        words = text.strip()
        if not words:
            raise InvalidAction("empty")
        return words
