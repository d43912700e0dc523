"""The citer, which answers and cites documents by their ids."""

import json
from typing import Any

from roles.prompts import load
from selfplay.role import TaggedRole, split_at_tags
from selfplay.types import Action, InvalidAction


class Citer(TaggedRole):
    """Role that parses `<answer>...</answer>` and at most one `<cite>...</cite>` with ids."""

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
            template=load("citer", style), opening=opening, closing=closing, **settings
        )

    def parse(self, text: str) -> Action:
        """Return {"answer": ..., "cited": [ids]} as JSON.

        The ids are separated by commas or white space. Raises `InvalidAction` if the tags of the
        answer are not exactly one pair, if the answer is empty, and if the tags of citations are
        present and not one pair.
        """
        answer, rest = self.split(text)
        if not answer:
            raise InvalidAction("no_answer")
        cited = ""
        if "<cite>" in rest or "</cite>" in rest:
            cited, _ = split_at_tags(rest, "<cite>", "</cite>")
        ids = [each for part in cited.split(",") for each in part.split()]
        return json.dumps({"answer": answer, "cited": ids})
