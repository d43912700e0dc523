"""The debater, which argues and gives its answer between tags."""

import json
from typing import Any

from roles.prompts import load
from selfplay.role import TaggedRole
from selfplay.types import Action, InvalidAction


class Debater(TaggedRole):
    """Parses the answer between the tags and the argument, which is the other text."""

    def __init__(
        self,
        *,
        game: str = "debater",
        style: str = "full",
        opening: str = "<answer>",
        closing: str = "</answer>",
        **settings: Any,
    ) -> None:
        """Args:
        game: Name of the game, whose prompts are used.
        style: Name of a prompt style of the game, or the path of a template.
        opening, closing: Tags of the answer.
        settings: Settings of `Role`.
        """
        super().__init__(template=load(game, style), opening=opening, closing=closing, **settings)

    def parse(self, text: str) -> Action:
        """Return {"answer": ..., "argument": ...}; raises `InvalidAction` without an answer."""
        answer, argument = self.split(text)
        if not answer:
            raise InvalidAction("no_answer")
        return json.dumps({"answer": answer, "argument": argument})
