"""The answer agent: selects memories and answers a question (Memory-R1, 2508.19828)."""

import json
from typing import Any

from roles.answer_text import REFERENCE
from roles.prompts import load
from selfplay.role import Role
from selfplay.types import Action, InvalidAction


class AnswerAgent(Role):
    """Role that parses the selected memories, and the answer after a marker."""

    def __init__(self, *, style: str = "full", marker: str | None = None, **settings: Any) -> None:
        """Args:
        style: Name or path of a prompt template.
        marker: Text before the answer. None: the one that the style asks for, "It is" for
            `sentence` and "**Answer:**" for all others.
        settings: Settings of `Role`.
        """
        super().__init__(template=load("answer_agent", style), **settings)
        self.marker = marker or ("It is" if style == "sentence" else "**Answer:**")

    def parse(self, text: str) -> Action:
        """Return {"answer": ..., "memories": [ids]} as JSON.

        The memories are the ids in square brackets before the marker. Raises `InvalidAction`:
        no_answer without the marker or without text after it, several_answers for several markers.
        """
        if text.count(self.marker) > 1:
            raise InvalidAction("several_answers")
        before, marked, answer = text.partition(self.marker)
        if not marked or not answer.strip():
            raise InvalidAction("no_answer")
        named = list(dict.fromkeys(REFERENCE.findall(before)))
        return json.dumps({"answer": answer.strip(), "memories": named})
