"""The worker, which answers one question and knows nothing else."""

from typing import Any

from roles.prompts import load
from selfplay.role import TaggedRole
from selfplay.types import Action, InvalidAction


class Worker(TaggedRole):
    """Role that parses the answer between the tags."""

    def __init__(
        self,
        *,
        style: str = "full",
        opening: str = "<answer>",
        closing: str = "</answer>",
        **settings: Any,
    ) -> None:
        """Args:
        style: Name of a prompt style of the role, or the path of a template.
        opening, closing: Tags of the answer.
        settings: Settings of `Role`.
        """
        super().__init__(
            template=load("worker", style), opening=opening, closing=closing, **settings
        )

    def parse(self, text: str) -> Action:
        """Return the answer. Raises `InvalidAction` if the tags are not exactly one pair, and for
        an empty answer."""
        answer, _ = self.split(text)
        if not answer:
            raise InvalidAction("no_answer")
        return answer
