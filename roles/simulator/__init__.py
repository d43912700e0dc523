"""The simulator, which writes the document that a search engine would return."""

from typing import Any

from roles.prompts import load
from selfplay.role import TaggedRole
from selfplay.types import Action, InvalidAction


class Simulator(TaggedRole):
    """Role that parses the document between the tags."""

    def __init__(
        self,
        *,
        style: str = "full",
        opening: str = "<document>",
        closing: str = "</document>",
        **settings: Any,
    ) -> None:
        """Args:
        style: Name of a prompt style of the role, or the path of a template.
        opening, closing: Tags of the document.
        settings: Settings of `Role`.
        """
        super().__init__(
            template=load("simulator", style), opening=opening, closing=closing, **settings
        )

    def parse(self, text: str) -> Action:
        """Return the document. Raises `InvalidAction` if the tags are not exactly one pair, and for
        an empty document."""
        document, _ = self.split(text)
        if not document:
            raise InvalidAction("empty")
        return document
