"""The judge: reads a debate and says who, or what, is right."""

from typing import Any

from roles.prompts import load
from selfplay.role import ThinkingRole
from selfplay.types import Action, InvalidAction


class Judge(ThinkingRole):
    """Thinks, then gives its verdict; which verdicts there are is for the arena to say."""

    def __init__(self, *, game: str = "judge", style: str = "full", **settings: Any) -> None:
        """`style` names a prompt template of the game in `roles/prompts`, or is the path of one."""
        super().__init__(template=load(game, style), **settings)

    def parse(self, text: str) -> Action:
        """The verdict."""
        verdict = super().parse(text)
        if not verdict:
            raise InvalidAction("no_verdict")
        return verdict
