"""The tagged role: says anything, and between its tags what it means to do."""

from typing import Any

from roles.prompts import load
from selfplay.role import TaggedRole
from selfplay.types import Action, InvalidAction


class Tagged(TaggedRole):
    """What stands between the tags is the action: a question, a score, a piece of advice."""

    def __init__(self, *, game: str, style: str = "full", **settings: Any) -> None:
        """`style` names a prompt template of the game in `roles/prompts`, or is the path of one."""
        super().__init__(template=load(game, style), **settings)

    def parse(self, text: str) -> Action:
        """The text between the tags; raises `InvalidAction`, also for an empty one."""
        said = super().parse(text)
        if not said:
            raise InvalidAction("empty")
        return said
