"""The debater, which argues and gives its answer between tags, and the replier, which only
answers."""

import json
from typing import Any

from roles.prompts import load
from selfplay.role import Role, TaggedRole
from selfplay.types import Action, InvalidAction

TAGS = ("<answer>", "</answer>")
"""Tags of an answer."""
SENTENCE = ("answer is", ".")
"""Words before and after an answer in the style `sentence`."""


class Debater(TaggedRole):
    """Role that parses the answer between the tags, and the argument, which is the other text."""

    def __init__(
        self,
        *,
        game: str = "debater",
        style: str = "full",
        opening: str | None = None,
        closing: str | None = None,
        **settings: Any,
    ) -> None:
        """Args:
        game: Name of the game, whose prompts are used.
        style: Name of a prompt style of the game, or the path of a template.
        opening, closing: Tags of the answer. None: those that the style asks for, which are
            "answer is" and "." for `sentence`, and "<answer>" and "</answer>" for all others.
        settings: Settings of `Role`.
        """
        first, last = SENTENCE if style == "sentence" else TAGS
        super().__init__(
            template=load(game, style),
            opening=opening or first,
            closing=closing or last,
            **settings,
        )

    def parse(self, text: str) -> Action:
        """Return {"answer": ..., "argument": ...} as JSON.

        Raises `InvalidAction` if the tags are not exactly one pair, and for an empty answer.
        """
        answer, argument = self.split(text)
        if not answer:
            raise InvalidAction("no_answer")
        return json.dumps({"answer": answer, "argument": argument})


class Replier(Role):
    """Role whose whole text is the answer, for questions that say how an answer is written."""

    def __init__(self, *, game: str = "generator", style: str = "terse", **settings: Any) -> None:
        """Args:
        game: Name of the game, whose prompts are used.
        style: Name of a prompt style of the game, or the path of a template.
        settings: Settings of `Role`.
        """
        super().__init__(template=load(game, style), **settings)

    def parse(self, text: str) -> Action:
        """Return {"answer": ..., "argument": ""} as JSON; raises `InvalidAction` for an empty
        text."""
        if not text.strip():
            raise InvalidAction("no_answer")
        return json.dumps({"answer": text.strip(), "argument": ""})
