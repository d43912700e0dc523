"""The debater: argues, and gives its answer between tags."""

import json
from typing import Any

from roles.prompts import load
from selfplay.role import TaggedRole
from selfplay.types import Action, InvalidAction


class Debater(TaggedRole):
    """What stands between the tags is the answer; the rest is the argument that others read."""

    def __init__(
        self,
        *,
        game: str = "debater",
        style: str = "full",
        opening: str = "<answer>",
        closing: str = "</answer>",
        **settings: Any,
    ) -> None:
        """`style` names a prompt template of the game in `roles/prompts`, or is the path of one."""
        super().__init__(template=load(game, style), opening=opening, closing=closing, **settings)

    def parse(self, text: str) -> Action:
        """{"answer": ..., "argument": ...}; raises `InvalidAction`, also for an empty answer."""
        answer, argument = self.split(text)
        if not answer:
            raise InvalidAction("no_answer")
        return json.dumps({"answer": answer, "argument": argument})
