"""The tagged role, whose action is the text between its tags."""

from typing import Any

from roles.prompts import load
from selfplay.role import TaggedRole
from selfplay.types import Action, InvalidAction


class Tagged(TaggedRole):
    """Role that parses the text between the tags: a question, a score or a piece of advice."""

    def __init__(self, *, game: str, style: str = "full", **settings: Any) -> None:
        """Args:
        game: Name of the game, whose prompts are used.
        style: Name of a prompt style of the game, or the path of a template.
        settings: Settings of `TaggedRole`.
        """
        super().__init__(template=load(game, style), **settings)

    def parse(self, text: str) -> Action:
        """Return the text between the tags. Raises `InvalidAction` if the tags are not exactly one
        pair, and for an empty text."""
        said = super().parse(text)
        if not said:
            raise InvalidAction("empty")
        return said
