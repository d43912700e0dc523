"""The player: says its move, or a message to others, and nothing else."""

from typing import Any

from roles.prompts import load
from selfplay.role import Role
from selfplay.types import Action, InvalidAction


class Player(Role):
    """The whole text is the action; which texts are legal moves is for the arena to say."""

    def __init__(self, *, game: str, style: str = "full", **settings: Any) -> None:
        """`style` names a prompt template of the game in `roles/prompts`, or is the path of one."""
        super().__init__(template=load(game, style), **settings)

    def parse(self, text: str) -> Action:
        """The text without white space around it."""
        words = text.strip()
        if not words:
            raise InvalidAction("empty")
        return words
