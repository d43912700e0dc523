"""The tagged role, whose action is the text between its tags."""

from typing import Any

from roles.prompts import load
from selfplay.role import TaggedRole
from selfplay.types import Action, InvalidAction


class Tagged(TaggedRole):
    """Parses the text between the tags: a question, a score or a piece of advice."""

    def __init__(self, *, game: str, style: str = "full", **settings: Any) -> None:
        """Args:
        game: Name of the game, whose prompts are used.
        style: Name of a prompt style of the game, or the path of a template.
        settings: Settings of `TaggedRole`.
        """
        super().__init__(template=load(game, style), **settings)

    def parse(self, text: str) -> Action:
        """Return the text between the tags; raises `InvalidAction`, also for an empty one."""
        said = super().parse(text)
        if not said:
            raise InvalidAction("empty")
        return said
